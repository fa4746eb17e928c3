"""Whether a start of a job has nothing to do, by the records of the starts before it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterrun.run_folder.claims import JobIdentity
from clusterrun.worker.job import requeue

TOKEN = "abcdefgh22345672"

DONE = {"status": 0, "signal": "", "due": ""}


@pytest.mark.parametrize(("why", "end", "restart", "expected"), [
    ("preempted", DONE, 2, True),
    ("the time limit", DONE, 2, False),  # an administrator requeued it: the user may want another run
    ("preempted", {**DONE, "status": 85}, 2, False),
    ("preempted", {**DONE, "signal": "TERM"}, 2, False),
    ("preempted", DONE, 1, False),  # the start after the preemption
    ("preempted", DONE, 3, False),  # the last start has no end record
])  # fmt: skip
def test_a_start_that_only_follows_from_an_earlier_preemption_has_nothing_to_do(
    tmp_path: Path, why: str, end: dict[str, Any], restart: int, expected: bool
) -> None:
    preempted, completed = (tmp_path / "attempts" / f"{TOKEN}.{start}.0" for start in (0, 1))
    preempted.mkdir(parents=True)
    completed.mkdir()
    (preempted / "requeue.json").write_text(json.dumps({"why": why}))
    (preempted / "end.json").write_text(json.dumps({"status": 85, "due": "JOB REQUEUE"}))
    (completed / "end.json").write_text(json.dumps(end))
    job: Any = SimpleNamespace(run_dir=tmp_path, key=TOKEN, identity=JobIdentity("lab", "5", "", restart))
    assert requeue.is_completed(job) == expected
