"""What is said of jobs while Slurm, or its accounting, is silent: never that there are none."""

from __future__ import annotations

import json
import os
from pwd import getpwuid

import pytest

from clusterrun.records.store import Store
from tests.support.command_desk import Desk
from tests.support.listed_jobs import SILENT
from tests.support.run_records import submitted


@pytest.mark.parametrize("verb", ["status", "wait", "logs", "cancel"])
def test_a_job_that_only_accounting_may_know_is_not_denied_while_that_is_silent(desk: Desk, verb: str) -> None:
    desk.slurm.answer("sacct", err="sacct: error: slurm_persist_conn_open: Connection refused\n", status=1)
    said = desk.type(verb, "99")
    assert said.status == 3 and "accounting is not responding" in said.err


@pytest.mark.parametrize("which", [("--all",), ("--state", "R"), ("--name", "train*")])
def test_cancelling_by_what_is_not_known_does_nothing_and_says_so(desk: Desk, which: tuple[str, ...]) -> None:
    submitted(Store(desk.project, desk.state), cluster="desk", user=getpwuid(os.getuid()).pw_name)
    desk.slurm.answer("squeue", **SILENT)
    said = desk.type("cancel", *which, "--yes")
    assert said.status == 3 and "nothing was cancelled" in said.err


def test_a_list_that_cannot_be_asked_for_is_not_empty(desk: Desk) -> None:
    desk.slurm.answer("squeue", **SILENT)
    said = desk.type("list")
    assert said.status == 3 and "Slurm is not responding" in said.err and "clusterrun: no active jobs" not in said.err
    said = desk.type("list", "--json")
    assert said.status == 3 and json.loads(said.out)["error"]


@pytest.mark.parametrize("verb", ["status", "wait", "why", "logs", "cancel"])
def test_a_part_of_a_run_that_has_none_is_no_job(desk: Desk, verb: str) -> None:
    run = submitted(Store(desk.project, desk.state), cluster="desk", user=getpwuid(os.getuid()).pw_name)
    said = desk.type(verb, f"{run.job_id}_3")
    assert said.status == 4 and "is not an array" in said.err
