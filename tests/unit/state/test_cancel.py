"""Cancelling more jobs than one scancel takes: each job keeps the result and the record of its own request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import CommandError, SchedulerError
from clusterrun.records.store import Store
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.scheduler.slurm.scontrol import ClusterFacts
from clusterrun.state import cancel
from clusterrun.state.reconcile import RunState
from clusterrun.system.shell import Completed
from tests.support.fake_cluster import run, status

JOBS = 150


def targets(root: Path) -> list[RunState]:
    found = []
    for number in range(1, JOBS + 1):
        one = run(root, number)
        (one.run_dir / "submissions").mkdir()
        found.append(RunState(one, status(number)))
    return found


def is_marked(state: RunState) -> bool:
    assert state.record is not None
    path = state.record.run_dir / "submissions" / f"{state.record.submission.token}.json"
    return bool(json.loads(path.read_text())["cancel_asked"])


@pytest.mark.parametrize(("answer", "marked"), [
    (Completed(1, "", "Unable to contact slurm controller"), False),
    (CommandError(["scancel"], status=None, timed_out=True), True),
], ids=["refused", "no answer in time"])  # fmt: skip
def test_a_scancel_that_fails_leaves_the_marks_of_the_other_jobs(
    tmp_path: Path, answer: Completed | CommandError, marked: bool
) -> None:
    def scancel(argv: Sequence[str], **_: Any) -> Completed:
        if "1" in argv:
            return Completed(0, "", "")
        if isinstance(answer, CommandError):
            raise answer
        return answer

    scheduler = SlurmScheduler(ClusterFacts("c", accounting=False, gpus=False), {}, run=scancel)
    states = targets(tmp_path)
    results = cancel.cancel(states, "me", lambda _: scheduler, lambda one: Store(one.root, tmp_path / "state"))
    assert [result.done for _, result in results] == [True] * 100 + [False] * 50
    assert [is_marked(state) for state in states] == [True] * 100 + [marked] * 50


def test_one_scancel_that_fails_is_an_error() -> None:
    scheduler = SlurmScheduler(
        ClusterFacts("c", accounting=False, gpus=False), {}, run=lambda argv, **_: Completed(1, "", "no")
    )
    with pytest.raises(SchedulerError, match="scancel failed"):
        scheduler.cancel([status(number).id for number in range(100)])
