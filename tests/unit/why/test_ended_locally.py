"""Why a local job ended, and why one that Slurm could not start: without commands or facts that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.base.job import JobId, JobStatus, Outcome
from clusterrun.records.store import Store
from clusterrun.why import ended
from clusterrun.why.causes import Cause
from clusterrun.why.ended import local_cause
from tests.support.ended_runs import Slurm, over, write_logs
from tests.support.run_records import submitted


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "logs").mkdir()
    return Store(tmp_path, tmp_path / "state")


def local(state: str, reason: str = "") -> JobStatus:
    return JobStatus(id=JobId("L6"), state=state, outcome=Outcome.FAILED, reason=reason)


def test_a_cancelled_local_job_is_explained_without_a_slurm_command(store: Store) -> None:
    run = submitted(store, job="L6", scheduler="local", cluster="local")
    write_logs(run, "slurm is not here\n", "L6")
    slurm = Slurm()
    told = ended.explain(slurm, over(run, "CANCELLED", 143, "L6")).json()
    assert told["cause"] == "the job was cancelled by a signal to the job's supervisor"
    assert "sacct" not in str(told) and slurm.asked == []


def test_a_local_job_whose_supervisor_is_gone_lost_no_node_of_slurm(store: Store) -> None:
    run = submitted(store, job="L6", scheduler="local", cluster="local")
    write_logs(run, "", "L6")
    told = ended.explain(Slurm(), over(run, "NODE_FAIL", None, "L6", reason="the job's supervisor was killed")).json()
    assert told["cause"] == "the job's supervisor was killed"
    assert told["advice"] is None and "--exclude" not in told["command"]


def test_slurm_commands_are_taken_out_of_advice_for_a_local_job() -> None:
    cause = Cause(
        kind="host-memory", sentence="", advice="more (sacct -j JOB -o X shows it), or less", command="sacct -j 1"
    )
    assert (local_cause(cause, local("FAILED")).advice, local_cause(cause, local("FAILED")).command) == (
        "more, or less",
        "",
    )


def test_a_file_that_is_missing_is_looked_for_without_srun_in_a_local_job(store: Store) -> None:
    run = submitted(store, job="L6", scheduler="local", cluster="local")
    write_logs(run, "FileNotFoundError: [Errno 2] No such file or directory: 'a.pt'\n", "L6")
    assert ended.explain(Slurm(), over(run, job="L6")).command == "ls -ld a.pt"


def test_a_job_that_slurm_could_not_start_is_explained_once_slurm_has_forgotten_its_exit_code(store: Store) -> None:
    run = submitted(store)
    told = ended.explain(Slurm(), over(run, "FAILED", None, reason="JobLaunchFailure", nodes="n[3-4]"))
    assert told.node == "n3" and told.sentence.startswith("Slurm could not start the job on n3 (JobLaunchFailure)")
    assert told.kind == "log-unopened" and "JobLaunchFailure" in told.sentence
    assert str(run.logs) in told.command
