"""How long a job waited, and for what."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.job import JobId, JobStatus, Outcome
from clusterrun.records.end_records import unknown_status
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.state.reconcile import RunState
from clusterrun.state.waited import Waited, waited
from tests.support.run_records import AT, attempt, submitted


def run(tmp_path: Path, queue: Any = None, **more: Any) -> RunRecord:
    """A run that was submitted at AT, and whose first launch began 720 s later."""
    one = submitted(Store(tmp_path, tmp_path / "state"), 0, **more)
    for restart, began in ((0, AT + 720.0), (1, AT + 9000.0)):
        (attempt(one, restart) / "launch.json").write_text(json.dumps({"began": began, "queue": queue}))
    return one


def wait_of(one: RunRecord) -> Waited | None:
    return waited(RunState(one, replace(unknown_status(one, ""), state="COMPLETED", outcome=Outcome.DONE)))


@pytest.mark.parametrize(("seconds", "blocked", "line"), [
    (720, 240, "12:00 (4:00 for its dependency, then 8:00 in the queue)"), (720, 0, "12:00 in the queue"),
    (720, 720, "12:00 for its dependency"), (720, None, "12:00"), (59, 0, ""), (0, 0, ""),
])  # fmt: skip
def test_the_line_says_for_what_a_job_waited(seconds: float, blocked: float | None, line: str) -> None:
    assert Waited(seconds, blocked, "for its dependency").line() == line


def test_what_slurm_told_the_first_launch_counts(tmp_path: Path) -> None:
    queue = {"submitted": AT + 1, "eligible": AT + 241, "started": AT + 721}
    one = run(tmp_path, queue, sources={"dependency": ("afterok:5", "--dependency")})
    assert wait_of(one) == (720, 240, "for its dependency")
    assert wait_of(one).json() == {"seconds": 720, "blocked_s": 240, "queued_s": 480}  # type: ignore[union-attr]


def test_a_job_that_was_held_says_so(tmp_path: Path) -> None:
    found = wait_of(run(tmp_path, {"submitted": AT, "eligible": AT + 600, "started": AT + 720}))
    assert found is not None
    assert found.line() == "12:00 (10:00 held or before its begin time, then 2:00 in the queue)"


@pytest.mark.parametrize("queue", [None, {}, [], {"eligible": "x"}, "no"])
def test_without_slurms_times_only_the_whole_wait_is_known(tmp_path: Path, queue: Any) -> None:
    assert wait_of(run(tmp_path, queue)) == (720, None, "")


def test_a_local_job_waits_for_its_dependency_only(tmp_path: Path) -> None:
    one = run(tmp_path, scheduler="local", sources={"dependency": ("afterok:L1", "--dependency")})
    assert wait_of(one) == (720, 720, "for its dependency")


def test_nothing_is_said_of_a_job_that_did_not_start_or_whose_clock_is_wrong(tmp_path: Path) -> None:
    assert wait_of(submitted(Store(tmp_path, tmp_path / "state"), 2)) is None
    assert wait_of(run(tmp_path, {"submitted": AT + 5000})) is None


def test_of_another_tools_job_the_scheduler_tells_the_whole_wait() -> None:
    job = JobStatus(id=JobId("7"), state="COMPLETED", outcome=Outcome.DONE, submitted=AT, started=AT + 90)
    assert waited(RunState(None, job)) == (90, None, "")
    assert waited(RunState(None, replace(job, started=None))) is None
