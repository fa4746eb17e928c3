"""Jobs without a record of ours: what Slurm tells of any job that may be seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from clusterrun import records, safe_files
from clusterrun.arrays import each_task
from clusterrun.errors import NoSuchJob, SchedulerError
from clusterrun.job import JobId, JobStatus, Outcome
from clusterrun.ownership import Jobs, covers
from clusterrun.records import RunRecord
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.scheduler.sparing import FIRST, LONGEST
from clusterrun.states import RunState

#: Seconds back that accounting is asked about a job whose time of submission nobody here knows.
WINDOW = 30 * 86_400
#: Seconds between questions to accounting, which may lag behind a job's end by some: asked twice, it has told.
ACCOUNTING = 60.0
NOT_TOLD = "it left the queue, and accounting does not tell how it ended"
NOT_KEPT = "it left the queue, and this cluster keeps no accounts: how it ended is not known"


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
    found = {i: [RunState(None, job) for job in answer.jobs if _answers(job, i)] for i in ids}
    absent = [i for i in ids if not found[i]]
    past = scheduler.account(absent, int(now) - WINDOW) if absent else Answer()
    for one in absent:
        told = [job for job in past.jobs if _answers(job, one)]
        last = [job for job in answer.last if _answers(job, one)]
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
    jobs = Jobs(rows)
    taken = {id(job) for run in runs for job in jobs.of(run)}
    scripts: dict[str, RunRecord | None] = {}
    more, rest = [], []
    for job in rows:
        if id(job) in taken or (job.is_over and not everything):
            continue
        if job.script.endswith("/script.sh") and job.script not in scripts:
            scripts[job.script] = records.load(Path(job.script).parent)
        run = scripts.get(job.script)
        if run is not None and run.mine:
            more.append(run)
            taken |= {id(one) for one in jobs.of(run)}
        else:
            rest.append(RunState(None, job) if answer.complete else RunState(None, job, answer.note, answer.last_at))
    return more, rest


class Watch:
    """Jobs without a record until they are over; an array counts as its tasks.

    One squeue for all of them at a time, one sacct for those that have left it, and none for those that are over.
    """

    def __init__(
        self, ids: Sequence[JobId], scheduler: Scheduler, *,
        now: Callable[[], float] = time.monotonic, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._ids, self._scheduler, self._now, self._clock = list(ids), scheduler, now, clock
        self._found: dict[JobId, RunState] = {}
        self._untold: dict[JobId, float] = {}  # when accounting first answered and did not tell of it
        self._given_up: set[JobId] = set()
        self._accounted = -ACCOUNTING
        self._wait = FIRST
        for rows in states(ids, scheduler, clock()).values():
            self._take(row.status for row in rows)
        self._next = now() + FIRST

    def look(self, *, due: bool = False) -> list[RunState]:
        """The states, fresh where ``due`` or it is time, else those of the last look."""
        open_ids = [i for i, state in self._found.items() if not self.settled(state)]
        if open_ids and (due or self._now() >= self._next):
            self._ask(open_ids)
            self._next = self._now() + self._wait
            self._wait = min(self._wait * 1.5, LONGEST)
        return list(self._found.values())

    def has_news(self) -> bool:
        """Never: a job without a record tells of itself through Slurm alone."""
        return False

    def settled(self, state: RunState) -> bool:
        """Whether a job is over for good, or will never be known."""
        return state.status.is_final or state.status.id in self._given_up

    def _ask(self, open_ids: Sequence[JobId]) -> None:
        wanted = self._asked(open_ids)
        answer = self._scheduler.query(wanted)
        if not answer.complete:
            for i in open_ids:
                self._found[i] = replace(self._found[i], note=answer.note)
            return
        seen = self._take(job for job in answer.jobs if any(_answers(job, i) for i in wanted))
        absent = [i for i in open_ids if i not in seen]
        if absent and self._now() - self._accounted >= ACCOUNTING:
            self._accounted = self._now()
            past = self._scheduler.account(self._asked(absent), self._since(absent))
            told = self._take((job for job in past.jobs if job.is_over), only=frozenset(absent))
            absent = [i for i in absent if i not in told]
            self._left(absent, NOT_KEPT if past.none_kept else NOT_TOLD, past.note)
            # asked twice, a while apart, accounting has answered both times: it will not tell
            for i in absent if past.complete else ():
                if past.none_kept or self._now() - self._untold.setdefault(i, self._now()) >= ACCOUNTING:
                    self._given_up.add(i)
        else:  # too soon to ask accounting: what it last said of them stands
            self._left([i for i in absent if self._found[i].status.outcome is not Outcome.UNKNOWN], NOT_TOLD, "")

    def _asked(self, ids: Sequence[JobId]) -> list[JobId]:
        """The ids that were typed, as far as one of these tasks is meant by them."""
        return [one for one in self._ids if any(i.raw == one.raw and one.task in (None, i.task) for i in ids)]

    def _take(self, jobs: Iterable[JobStatus], only: frozenset[JobId] | None = None) -> set[JobId]:
        seen = set()
        for row in jobs:
            for job in each_task(row):
                known = self._found.get(job.id)
                if (only is not None and job.id not in only) or (known is not None and self.settled(known)):
                    continue
                self._found[job.id] = RunState(None, job)
                self._untold.pop(job.id, None)
                seen.add(job.id)
        return seen

    def _left(self, absent: Sequence[JobId], why: str, note: str) -> None:
        """These have left the queue, and how they ended nobody has told."""
        for i in absent:
            job = replace(self._found[i].status, state="UNKNOWN", outcome=Outcome.UNKNOWN, reason=why, source="squeue")
            self._found[i] = RunState(None, job, note)

    def _since(self, ids: Sequence[JobId]) -> int:
        times = [at for i in ids if (at := self._found[i].status.submitted) is not None]
        return min(times) - 3600 if times else int(self._clock()) - WINDOW


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


def _answers(job: JobStatus, asked: JobId) -> bool:
    return job.id.base == asked.base and asked.task in (None, job.id.task)
