"""Jobs without a record of ours: what Slurm tells of any job that may be seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterrun.errors import NoSuchJob, SchedulerError
from clusterrun.job import JobId, JobStatus
from clusterrun.scheduler import Scheduler
from clusterrun.states import RunState

#: Seconds back that accounting is asked about a job whose time of submission nobody here knows.
WINDOW = 30 * 86_400


def states(ids: Sequence[JobId], scheduler: Scheduler, now: float) -> dict[JobId, list[RunState]]:
    """Each job as Slurm shows it, an array by its tasks; at most one squeue and one sacct.

    Raises NoSuchJob for one that nobody knows, SchedulerError where Slurm does not answer.
    """
    elsewhere = next((i for i in ids if i.cluster not in ("", scheduler.cluster)), None)
    if elsewhere:
        raise NoSuchJob(
            f"no such job: {elsewhere} on cluster {elsewhere.cluster}",
            hint=f"this shell is configured for cluster {scheduler.cluster}",
        )
    answer = scheduler.query(ids)
    rows = {i: [job for job in answer.jobs if _answers(job, i)] for i in ids}
    absent = [i for i in ids if not rows[i]]
    past = scheduler.account(absent, int(now) - WINDOW) if absent else None
    for one in absent:
        rows[one] = [job for job in (past.jobs if past else ()) if _answers(job, one)]
        if not rows[one] and not answer.complete:
            raise SchedulerError("Slurm did not answer", said=answer.note, hint="ask `scontrol ping`, then try again")
        if not rows[one]:
            raise NoSuchJob(f"no such job: {one}", hint="`clusterrun list --all` shows yours")
    return {i: [RunState(None, job) for job in rows[i]] for i in ids}


def run_folders(job: JobId, scheduler: Scheduler) -> list[Path]:
    """The run folders that Slurm itself remembers: the script it was given stands in one."""
    return [Path(row.script).parent for row in scheduler.query([job]).jobs if row.script.endswith("/script.sh")]


def _answers(job: JobStatus, asked: JobId) -> bool:
    return job.id.base == asked.base and asked.task in (None, job.id.task)
