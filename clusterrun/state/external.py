"""External jobs, which have no run record here: what Slurm shows about them, once or until they end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from clusterrun.base.errors import NoSuchJob, SchedulerError
from clusterrun.base.job import JobId, JobStatus, Outcome, covers, split_tasks
from clusterrun.run_folder import identity, safe_files
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.state.reconcile import RunState

#: Seconds back that accounting is queried about a job whose submission time is unknown.
WINDOW = 30 * 86_400
#: Seconds between two queries of accounting. It may record an end late, so a job is given up after two of them.
ACCOUNTING = 60.0
END_UNKNOWN = "the job left the queue, and accounting has no record of how it ended"
NO_ACCOUNTING = "the job left the queue, and its outcome is unknown because this cluster has no accounting"
_RESPONDED = Answer()


def query_states(ids: Sequence[JobId], scheduler: Scheduler, now: float) -> dict[JobId, list[RunState]]:
    """Return the states of jobs, of an array those of its tasks, with at most one squeue and one sacct.

    Raises NoSuchJob for an unknown job, and SchedulerError if Slurm does not respond and the job is not in the cache.
    """
    for job in ids:
        if not covers(scheduler.cluster, job.cluster):
            raise NoSuchJob(
                f"no such job: {job} on cluster {job.cluster}",
                hint=f"this shell is configured for cluster {scheduler.cluster}",
            )
    answer = scheduler.query(ids)
    states = {job: external_states(_rows_of(job, answer.jobs)) for job in ids}
    absent = [job for job in ids if not states[job]]
    past = scheduler.account(absent, int(now) - WINDOW) if absent else Answer()
    return states | {job: _absent_states(job, answer, past) for job in absent}


def external_states(rows: Iterable[JobStatus], answer: Answer = _RESPONDED) -> list[RunState]:
    """Return the states of jobs that have no record, by the last rows of ``answer`` if it is not complete."""
    as_of = None if answer.complete else answer.last_at
    return [RunState(None, row, answer.note, as_of) for row in rows]


def _absent_states(job: JobId, answer: Answer, past: Answer) -> list[RunState]:
    """Return the states of a job that the queue does not show, by accounting (``past``) or the last answer."""
    accounted, last = _rows_of(job, past.jobs), _rows_of(job, answer.last)
    newest = accounted or last
    if last and any(not row.is_over for row in newest):
        return external_states(last, answer)
    if accounted:
        return external_states(accounted)
    if not answer.complete:
        hint = "run `scontrol ping`, then try again"
        raise SchedulerError("Slurm is not responding", detail=answer.note, hint=hint)
    if not past.complete:
        raise SchedulerError(
            f"job {job} is not in the queue, and accounting is not responding", detail=past.note,
            hint="try again; accounting may still have a record of the job",
        )  # fmt: skip
    hint = "`clusterrun list --all` shows your jobs"
    if past.no_accounting:
        hint = "Slurm forgets a job a few minutes after it ends, and this cluster has no accounting"
    raise NoSuchJob(f"no such job: {job}", hint=hint)


def _rows_of(job: JobId, rows: Sequence[JobStatus]) -> list[JobStatus]:
    return [row for row in rows if job.includes(row.id)]


class ExternalJobs:
    """External jobs that are queried again and again, an array as its tasks. Raises NoSuchJob for an unknown id.

    One squeue queries all of them, one sacct those that have left the queue; jobs that have ended are not queried.
    """

    def __init__(
        self, ids: Sequence[JobId], scheduler: Scheduler, *, now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._ids, self._scheduler, self._now, self._clock = list(ids), scheduler, now, clock
        self._states: dict[JobId, RunState] = {}
        self._missing_since: dict[JobId, float] = {}  # when accounting first answered without them
        self._accounted = self._answered = -ACCOUNTING  # when accounting was last queried, and when it last answered
        for states in query_states(ids, scheduler, clock()).values():
            self._take(state.status for state in states)

    @property
    def states(self) -> list[RunState]:
        return list(self._states.values())

    def is_settled(self, state: RunState) -> bool:
        """Return whether a job has ended, or accounting answered twice about its end and has no record."""
        missing_since = self._missing_since.get(state.status.id, math.inf)
        return state.status.is_final or self._answered - missing_since >= ACCOUNTING

    def query(self) -> None:
        """Query the jobs that have not ended."""
        open_ids = [job for job, state in self._states.items() if not self.is_settled(state)]
        if not open_ids:
            return
        answer = self._scheduler.query(self._requested(open_ids))
        if not answer.complete:
            self._states |= {job: replace(self._states[job], note=answer.note) for job in open_ids}
            return
        queued = self._take(answer.jobs)
        absent = [job for job in open_ids if job not in queued]
        self._mark_left(absent)
        if absent and self._now() - self._accounted >= ACCOUNTING:
            self._account(absent)

    def _mark_left(self, absent: Sequence[JobId]) -> None:
        """Set jobs to unknown that have left the queue, until accounting answers about them again."""
        for job in absent:
            if self._states[job].status.outcome is not Outcome.UNKNOWN:
                self._mark_unknown(job, END_UNKNOWN, "")

    def _account(self, absent: Sequence[JobId]) -> None:
        self._accounted = now = self._now()
        past = self._scheduler.account(self._requested(absent), self._oldest(absent))
        left = set(absent)
        rows = chain.from_iterable(map(split_tasks, past.jobs))
        left -= self._take(row for row in rows if row.is_over and row.id in left)
        reason, since = (NO_ACCOUNTING, -math.inf) if past.no_accounting else (END_UNKNOWN, now)
        for job in left:
            self._mark_unknown(job, reason, past.note)
            if past.complete:
                self._missing_since.setdefault(job, since)
        if past.complete:
            self._answered = now

    def _oldest(self, jobs: Sequence[JobId]) -> int:
        """Return an epoch second before the submission of all jobs."""
        submitted = [self._states[job].status.submitted or 0 for job in jobs]
        return min(submitted) - 3600 if all(submitted) else int(self._clock()) - WINDOW

    def _mark_unknown(self, job: JobId, reason: str, note: str) -> None:
        last = self._states[job].status
        gone = replace(last, state="UNKNOWN", outcome=Outcome.UNKNOWN, reason=reason, source="squeue")
        self._states[job] = RunState(None, gone, note)

    def _requested(self, ids: Sequence[JobId]) -> list[JobId]:
        return [requested for requested in self._ids if any(map(requested.includes, ids))]

    def _take(self, rows: Iterable[JobStatus]) -> set[JobId]:
        """Take over the states of requested jobs that are not settled, and return their ids."""
        taken = set()
        for row in rows:
            if not self._requested([row.id]):
                continue
            for job in split_tasks(row):
                if not self._is_known_settled(job.id):
                    self._states[job.id] = RunState(None, job)
                    self._missing_since.pop(job.id, None)
                    taken.add(job.id)
        return taken

    def _is_known_settled(self, job: JobId) -> bool:
        return job in self._states and self.is_settled(self._states[job])


def find_run_folders(job: JobId, scheduler: Scheduler) -> tuple[list[Path], bool]:
    """Return the run folders of a job by the scripts that Slurm shows, and whether Slurm knows the job at all.

    A folder counts only if it belongs to the job's user.
    """
    rows = scheduler.query([job]).jobs
    folders: dict[Path, None] = {}
    for row in rows:
        if _owns_script(row):
            folders |= dict.fromkeys(folders_of(row.script))
    return list(folders), bool(rows)


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
