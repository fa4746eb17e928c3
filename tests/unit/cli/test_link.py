"""The cluster's end of ``--remote``: what another machine sends with a command."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import pytest

from clusterrun.cli.common.link import VERSION
from clusterrun.remote import run
from tests.support.command_desk import Desk

SUBMIT = ("submit", "--json", "--no-check", "--", "train.py")


def send(desk: Desk, monkeypatch: pytest.MonkeyPatch, *words: str, **changed: Any) -> Any:
    request = {
        "version": VERSION, "terminal": False, "environ": {}, "submission": None, "places": None, "job": "", **changed,
    }  # fmt: skip
    desk.set(CLUSTERRUN_REMOTE="link")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
    environ = dict(os.environ)
    said = desk.type(*words)
    for name in set(os.environ) - set(environ):
        monkeypatch.delenv(name)
    return said


def test_both_ends_speak_the_same_version() -> None:
    assert run.VERSION == VERSION


def test_the_other_machine_chooses_the_identity(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.slurm.answer("sbatch", "123\n")
    identity = "1795305600-abcdefgh234567ab"
    said = send(desk, monkeypatch, *SUBMIT, submission=identity)
    assert said.status == 0 and said.data["run_id"] == "20261122-000000-abcdef"
    again = send(desk, monkeypatch, *SUBMIT, submission=identity)
    assert again.status == 2 and "run 20261122-000000-abcdef was already submitted" in again.out
    assert sum(call[0] == "sbatch" for call in desk.slurm.calls) == 1


def test_secrets_reach_the_job_and_the_identity_does_not(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.slurm.answer("sbatch", "123\n")
    (desk.slurm.folder / "sbatch").write_text('#!/bin/sh\nenv >"${0%/*}/env"\necho 123\n')
    words = ("submit", "--json", "--no-check", "--secret", "A_TOKEN", "--", "train.py")
    send(desk, monkeypatch, *words, environ={"A_TOKEN": "s3cret"}, submission="1795305600-abcdefgh234567ab")
    env = (desk.slurm.folder / "env").read_text().splitlines()
    assert "A_TOKEN=s3cret" in env
    assert not [line for line in env if line.startswith(("CLUSTERRUN_SUBMISSION", "CLUSTERRUN_REMOTE"))]


@pytest.mark.parametrize("changed", [{"version": 99}, {"environ": 1}, {"places": {"f": {"at": "x"}}}])
def test_another_version_or_nonsense_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch, changed: Any) -> None:
    said = send(desk, monkeypatch, *SUBMIT, **changed)
    assert said.status == 2 and "clusterrun remote setup HOST" in said.out
    assert desk.slurm.count("sbatch") == 0


def test_no_request_at_all_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.set(CLUSTERRUN_REMOTE="link")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert desk.type("list").status == 2
