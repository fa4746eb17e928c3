"""Records that cannot be right, and files that are none: a line says what was skipped, and the rest is shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.security.crafting import Crafted
from tests.security.people import WAITS, Town

#: Changes of record.json, then of the submission's file.
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "at is a text": ({"at": "x"}, {}),
    "at is huge": ({"at": 10**30}, {}),
    "at is not a number": ({"at": float("nan")}, {}),
    "name is a number": ({"name": 5}, {}),
    "name is null": ({"name": None}, {}),
    "nodes is a text": ({"nodes": "two"}, {}),
    "root is a number": ({"root": 5}, {}),
    "root is relative": ({"root": "x"}, {}),
    "root holds a NUL": ({"root": "/a\0b"}, {}),
    "scheduler is unknown": ({"scheduler": "pbs"}, {}),
    "cluster is a list": ({"cluster": []}, {}),
    "run id is another": ({"run_id": "20250101-010203-zzzzzz"}, {}),
    "sources is a text": ({"sources": "x"}, {}),
    "job id is a word": ({}, {"job_id": "abc"}),
    "job id is a number": ({}, {"job_id": 5}),
    "submission's at is a text": ({}, {"at": "x"}),
    "submitter is a text": ({}, {"submitter": "x"}),
    "submitter has words for numbers": ({}, {"submitter": ["h", "x", "y"]}),
    "final is a text": ({}, {"final": "x"}),
    "final holds no texts": ({}, {"final": {"state": 5, "ended": "x", "nodes": [], "reason": {}, "figures": [1]}}),
    "token is a word": ({}, {"token": "x"}),
    "token is null": ({}, {"token": None}),
    "state is unknown": ({}, {"state": "flying"}),
}


def crafted(town: Town, number: int, what: tuple[dict[str, Any], dict[str, Any]]) -> Path:
    folder = town.a.project / ".clusterrun" / "runs" / f"20260101-0101{number:02}-abcdef"
    folder.mkdir()
    made = Crafted(folder, town.a, town.lab.cluster_name, run_id=folder.name, job_id=str(7000 + number))
    made.record, made.submission = what
    written = made.write()
    for path in (written, *written.iterdir()):
        path.chmod(0o700)
    return written


@pytest.mark.parametrize("what", [*WRONG, "all of them"])
def test_a_record_that_is_wrong_costs_one_line_and_no_other_job(town: Town, what: str) -> None:
    own = town.a.submit(WAITS, "--", str(town.a.home / "hello.sh"))["job_id"]
    chosen = WRONG if what == "all of them" else {what: WRONG[what]}
    folders = [crafted(town, number, wrong) for number, wrong in enumerate(chosen.values())]
    for number, folder in enumerate(folders):  # from every folder
        town.a.sh(
            f"echo '{json.dumps([town.lab.cluster_name, str(7000 + number), str(folder)])}' >> {town.a.state}/index"
        )
    for cwd in (town.a.project, town.a.home):
        for words in (("list",), ("list", "--all"), ("cancel", "--all", "--dry-run")):
            said = town.a.type(*words, cwd=cwd, status=0)
            assert own in said.out.split(), str(said)
            skipped = [line for line in said.err.splitlines() if "would cancel" not in line]
            assert len(skipped) <= 1, str(said)
            if words == ("list", "--all"):  # each is a row, or in the line
                shown = {str(7000 + number) for number in range(len(folders))} & {*said.out.split()}
                assert (len(shown) < len(folders)) == len(skipped), str(said)
    for number, folder in enumerate(folders):
        for verb in ("status", "logs", "why", "check", "cancel"):
            town.a.type(verb, folder.name)
        town.a.type("status", str(7000 + number))
    assert town.a.state_of(own)["state"] == "PENDING"


@pytest.mark.parametrize("content", ["FIFO", "/dev/zero", "huge", "deep"])
@pytest.mark.parametrize("name", ["record.json", "submissions/{token}.json", "claims/{token}/owner"])
def test_a_record_that_is_no_plain_small_file_is_not_waited_for(town: Town, name: str, content: str) -> None:
    own = town.a.submit(WAITS, "--", str(town.a.home / "hello.sh"))["job_id"]
    folder = town.a.project / ".clusterrun" / "runs" / "20260101-010101-abcdef"
    folder.mkdir()
    made = Crafted(folder, town.a, town.lab.cluster_name, run_id=folder.name, job_id="7000")
    made.extra = {name.format(token=made.token): Path(content) if content.startswith("/") else content}
    made.write()
    path = folder / name.format(token=made.token)
    if content == "huge":
        os.truncate(path, 1 << 40)
    elif content == "deep":
        path.write_text('{"at":' * 1_000_000)
    for words in (("list",), ("list", "--all"), ("cancel", "--all", "--dry-run")):
        said = town.a.type(*words, status=0)
        assert own in said.out.split(), str(said)
    for verb in ("status", "logs", "why", "check", "cancel"):
        town.a.type(verb, folder.name)
