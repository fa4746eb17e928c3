"""Holding and releasing a waiting job: what Slurm is asked, what it answers, and whose jobs are touched."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import Ambiguous, NoSuchJob, Refused, RequestError, SchedulerError
from clusterrun.base.job import JobId
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.scheduler.slurm.scontrol import ClusterFacts, hold_argv, parse_hold
from clusterrun.state import cancel
from clusterrun.state.reconcile import RunState
from clusterrun.system.shell import Completed
from tests.support.fake_cluster import run, status

#: scontrol's words on 22.05, hold and release alike
UNKNOWN = "Invalid job id specified for job 99999\nslurm_suspend error: Invalid job id specified\n"
OVER = "Job has already finished for job 1\nslurm_suspend error: Job has already finished\n"


class Recorded:
    """A scheduler that only notes what it is told to hold."""

    name = cluster = "slurm"

    def __init__(self) -> None:
        self.held: list[tuple[str, bool]] = []

    def hold(self, id: JobId, *, release: bool = False) -> None:
        self.held.append((str(id), release))


def test_what_scontrol_is_asked() -> None:
    assert hold_argv(JobId("7"), release=False) == ["scontrol", "hold", "7"]
    assert hold_argv(JobId("7", 3), release=True, cluster="other") == ["scontrol", "--clusters=other", "release", "7_3"]


def test_scontrols_words_once() -> None:
    assert parse_hold(UNKNOWN) == "Invalid job id specified for job 99999"
    assert parse_hold(OVER) == "Job has already finished for job 1"
    assert parse_hold("slurm_suspend error: Access/permission denied\n") == (
        "slurm_suspend error: Access/permission denied"
    )
    assert parse_hold("") == ""


def test_slurms_no_is_an_error_with_its_words() -> None:
    scheduler = SlurmScheduler(
        ClusterFacts("c", accounting=False, gpus=False), {}, run=lambda argv, **_: Completed(1, "", OVER)
    )
    with pytest.raises(Refused) as caught:
        scheduler.hold(JobId("1"), release=True)
    assert caught.value.detail == "Job has already finished for job 1" and "release" in caught.value.message


@pytest.mark.parametrize("release", [False, True])
def test_a_waiting_job_of_mine_is_held_and_released(tmp_path: Path, release: bool) -> None:
    scheduler: Any = Recorded()
    target = RunState(run(tmp_path, 5), status(5, "PENDING"))
    cancel.hold(target, "me", scheduler, release=release)
    assert scheduler.held == [("5", release)]


def test_nobody_elses_job_and_none_that_does_not_wait_is_touched(tmp_path: Path) -> None:
    scheduler: Any = Recorded()
    mine, waits = run(tmp_path, 5), status(5, "PENDING")
    for target, error in [
        (RunState(mine, waits, ""), None),
        (RunState(None, status(6, "PENDING", user="you")), NoSuchJob),
        (RunState(None, status(6, "PENDING", user="")), NoSuchJob),
        (RunState(mine, status(5, "RUNNING")), RequestError),
        (RunState(mine, status(5, "COMPLETED")), RequestError),
        (RunState(mine, status(5, "UNKNOWN"), "squeue: no answer"), SchedulerError),
    ]:
        if error is None:
            continue
        with pytest.raises(error):
            cancel.hold(target, "me", scheduler, release=False)
    theirs = replace(mine, owner=os.getuid() + 1)
    with pytest.raises(NoSuchJob, match="belongs to me"):
        cancel.hold(RunState(theirs, waits), "me", scheduler, release=True)
    assert scheduler.held == []


def test_a_submission_that_was_cut_off_is_settled_first(tmp_path: Path) -> None:
    one = run(tmp_path, 5)
    cut = replace(one, submissions=(replace(one.submission, job_id="", state="submitting"),))
    scheduler: Any = Recorded()
    with pytest.raises(Ambiguous):
        cancel.hold(RunState(cut, status(5, "UNKNOWN")), "me", scheduler, release=False)
