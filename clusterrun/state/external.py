"""External jobs, which have no run record here: what Slurm shows about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterrun.base.errors import NoSuchJob, SchedulerError
from clusterrun.base.job import JobId, JobStatus, covers
from clusterrun.run_folder import identity, safe_files
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.state.reconcile import RunState

#: Seconds back that accounting is queried about a job whose submission time is unknown.
WINDOW = 30 * 86_400
END_UNKNOWN = "the job left the queue, and accounting has no record of how it ended"
NO_ACCOUNTING = "the job left the queue, and its outcome is unknown because this cluster has no accounting"


def query_states(ids: Sequence[JobId], scheduler: Scheduler, now: float) -> dict[JobId, list[RunState]]:
    """Return the states of jobs, of an array those of its tasks, with at most one squeue and one sacct.

    Raises NoSuchJob for an unknown job, and SchedulerError if Slurm does not respond and the job is not in the cache.
    """
    elsewhere = next((i for i in ids if i.cluster and not covers(scheduler.cluster, i.cluster)), None)
    if elsewhere:
        raise NoSuchJob(
            f"no such job: {elsewhere} on cluster {elsewhere.cluster}",
            hint=f"this shell is configured for cluster {scheduler.cluster}",
        )
    answer = scheduler.query(ids)
    found = {i: [RunState(None, job) for job in answer.jobs if is_answer_for(job, i)] for i in ids}
    absent = [i for i in ids if not found[i]]
    past = scheduler.account(absent, int(now) - WINDOW) if absent else Answer()
    for one in absent:
        accounted = [job for job in past.jobs if is_answer_for(job, one)]
        last = [job for job in answer.last if is_answer_for(job, one)]
        if last and not all(job.is_over for job in accounted or last):
            found[one] = [RunState(None, job, answer.note, answer.last_at) for job in last]
        elif accounted:
            found[one] = [RunState(None, job) for job in accounted]
        elif not answer.complete:
            hint = "run `scontrol ping`, then try again"
            raise SchedulerError("Slurm is not responding", detail=answer.note, hint=hint)
        elif not past.complete:
            raise SchedulerError(
                f"job {one} is not in the queue, and accounting is not responding", detail=past.note,
                hint="try again; accounting may still have a record of the job",
            )  # fmt: skip
        else:
            forgets = "Slurm forgets a job a few minutes after it ends, and this cluster has no accounting"
            hint = forgets if past.no_accounting else "`clusterrun list --all` shows your jobs"
            raise NoSuchJob(f"no such job: {one}", hint=hint)
    return found


def find_run_folders(job: JobId, scheduler: Scheduler) -> tuple[list[Path], bool]:
    """Return the run folders of a job by the scripts that Slurm shows, and whether Slurm knows the job at all.

    A folder counts only if it belongs to the job's user.
    """
    rows = scheduler.query([job]).jobs
    folders = [folder for row in rows if _owns_script(row) for folder in folders_of(row.script)]
    return list(dict.fromkeys(folders)), bool(rows)


def folders_of(script: str) -> list[Path]:
    """Return the folders of the runs that a job with this script may be: several if it is an array's."""
    if identity.sweep_of_script(script) is not None:
        from clusterrun.records.sweeps import runs_of_script  # most jobs are of no sweep

        return runs_of_script(script)
    folder = identity.folder_of_script(script)
    return [folder] if folder is not None else []


def _owns_script(job: JobStatus) -> bool:
    try:
        return safe_files.user_name(safe_files.owner_of(Path(job.script).parent)) == job.user
    except OSError:
        return False


def is_answer_for(job: JobStatus, requested: JobId) -> bool:
    """Return whether a row of the queue is the requested job, or a task or component of it."""
    same_part = requested.task in (None, job.id.task) and requested.part in (None, job.id.part)
    return job.id.base == requested.base and same_part
