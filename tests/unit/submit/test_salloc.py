"""Whether a shell is one that salloc started, so that `submit` starts its run inside that job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterrun.base.job import JobId, JobStatus, outcome_of
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Script
from clusterrun.scheduler import Answer
from clusterrun.submit.job_python import JobPython
from clusterrun.submit.request import Levels, Request
from clusterrun.submit.salloc import job_of_shell, join

SALLOC = {"SLURM_JOB_ID": "8", "SLURM_NNODES": "2"}


class Slurm:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def query(self, ids: object = None) -> Answer:
        return self.answer


def slurm(*states: str, complete: bool = True) -> Slurm:
    jobs = [JobStatus(id=JobId("8"), state=state, outcome=outcome_of(state)) for state in states]
    return Slurm(Answer(jobs, complete))


def request(**values: str) -> Request:
    given = {name.replace("_", "-"): Value(value, "me") for name, value in values.items()}
    return Request(Path("/p"), given, Script("/p/t.py", ()), [], JobPython("python3"), Levels([], [], []))


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        (SALLOC, "8"),
        (SALLOC | {"SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"}, "8"),  # its shell on a node
        (SALLOC | {"SLURM_PROCID": "0"}, ""),  # a batch script
        (SALLOC | {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, ""),  # srun --pty
        (SALLOC | {"CLUSTERRUN_RUN_ID": "r"}, ""),  # a job of ours
        ({"SLURM_JOB_ID": "8;rm"}, ""),
        ({}, ""),
    ],
)
def test_the_job_of_a_shell(environ: dict[str, str], job: str) -> None:
    assert job_of_shell(environ) == job


def test_a_run_joins_the_shells_job_and_says_so() -> None:
    joined = join(request(), SALLOC, slurm("RUNNING"))  # type: ignore[arg-type]
    assert joined.in_job == "8" and joined.values["in-job"].source == "SLURM_JOB_ID"
    assert joined.notices == [
        "running inside job 8, which salloc started this shell for; --in-job none queues a new job"
    ]
    assert join(request(), SALLOC, slurm(complete=False)).in_job == "8"  # type: ignore[arg-type]


def test_a_run_with_a_place_of_its_own_does_not_join() -> None:
    for placed in (request(in_job="none"), request(in_job="9"), request(scheduler="slurm"), request(scheduler="local")):
        assert join(placed, SALLOC, slurm("RUNNING")) is placed  # type: ignore[arg-type]
    assert replace(request(in_job="none")).in_job == ""


@pytest.mark.parametrize("states", [(), ("COMPLETED",), ("PENDING",)])
def test_a_shell_that_has_outlived_its_job_queues_a_new_one_and_says_so(states: tuple[str, ...]) -> None:
    queued = join(request(), SALLOC, slurm(*states))  # type: ignore[arg-type]
    assert queued.in_job == "" and "queueing a new job" in queued.notices[0]
