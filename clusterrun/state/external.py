"""JobIndex without a record of ours: what Slurm tells of any job that may be seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterrun.errors import NoSuchJob, SchedulerError
from clusterrun.job import JobId, JobStatus
from clusterrun.records import run_record
from clusterrun.records.ownership import JobIndex, covers
from clusterrun.records.run_record import RunRecord
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.state.reconcile import RunState
from clusterrun.system import safe_files

#: Seconds back that accounting is asked about a job whose time of submission nobody here knows.
WINDOW = 30 * 86_400
#: Seconds between questions to accounting, which may lag behind a job's end by some: asked twice, it has told.
ACCOUNTING = 60.0
END_UNKNOWN = "it left the queue, and accounting does not tell how it ended"
NO_ACCOUNTING = "it left the queue, and this cluster keeps no accounts: how it ended is not known"


def states(ids: Sequence[JobId], scheduler: Scheduler, now: float) -> dict[JobId, list[RunState]]:
    """Each job as Slurm shows it, an array by its tasks; at most one squeue and one sacct.

    Raises NoSuchJob for one that nobody knows, SchedulerError where Slurm does not answer and never told of it.
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
        told = [job for job in past.jobs if is_answer_for(job, one)]
        last = [job for job in answer.last if is_answer_for(job, one)]
        if last and not all(job.is_over for job in told or last):
            found[one] = [RunState(None, job, answer.note, answer.last_at) for job in last]
        elif told:
            found[one] = [RunState(None, job) for job in told]
        elif not answer.complete:
            raise SchedulerError("Slurm did not answer", said=answer.note, hint="ask `scontrol ping`, then try again")
        elif not past.complete:
            raise SchedulerError(
                f"job {one} is not in the queue, and accounting did not answer", said=past.note,
                hint="whether there ever was such a job is not known: try again",
            )  # fmt: skip
        else:
            forgets = "Slurm forgets a job minutes after its end, and this cluster keeps no accounts"
            hint = forgets if past.none_kept else "`clusterrun list --all` shows yours"
            raise NoSuchJob(f"no such job: {one}", hint=hint)
    return found


def others(
    runs: Sequence[RunRecord], answer: Answer, *, everything: bool = False
) -> tuple[list[RunRecord], list[RunState]]:
    """Of my jobs in the queue, those without one of these runs: more runs of ours, and jobs that have none.

    A run is found by the script that Slurm was given, so one whose end was seen and that was started again is found
    too. With ``everything`` jobs that are over count.
    """
    rows = answer.jobs if answer.complete else answer.last
    jobs = JobIndex(rows)
    taken = {id(job) for run in runs for job in jobs.of(run)}
    scripts: dict[str, RunRecord | None] = {}
    more, rest = [], []
    for job in rows:
        if id(job) in taken or (job.is_over and not everything):
            continue
        if job.script.endswith("/script.sh") and job.script not in scripts:
            scripts[job.script] = run_record.load(Path(job.script).parent)
        run = scripts.get(job.script)
        if run is not None and run.mine:
            more.append(run)
            taken |= {id(one) for one in jobs.of(run)}
        else:
            rest.append(RunState(None, job) if answer.complete else RunState(None, job, answer.note, answer.last_at))
    return more, rest


def run_folders(job: JobId, scheduler: Scheduler) -> tuple[list[Path], bool]:
    """The run folders that Slurm itself remembers, by the scripts it was given, and whether it knows the job at all.

    A folder counts only where it belongs to the user whose job it is.
    """
    rows = scheduler.query([job]).jobs
    folders = [Path(row.script).parent for row in rows if row.script.endswith("/script.sh") and _owns_script(row)]
    return folders, bool(rows)


def _owns_script(job: JobStatus) -> bool:
    try:
        return safe_files.user_name(safe_files.owner_of(Path(job.script).parent)) == job.user
    except OSError:
        return False


def is_answer_for(job: JobStatus, asked: JobId) -> bool:
    return job.id.base == asked.base and asked.task in (None, job.id.task)
