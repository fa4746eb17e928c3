"""Watching jobs that have no record: one squeue for all of them, one sacct for those that have left the queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from clusterrun.job import JobId, JobStatus, Outcome, split_tasks
from clusterrun.scheduler import Scheduler
from clusterrun.scheduler.factory import FIRST, LONGEST
from clusterrun.state.external import ACCOUNTING, END_UNKNOWN, NO_ACCOUNTING, WINDOW, is_answer_for, states
from clusterrun.state.reconcile import RunState


class ExternalWatch:
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
        seen = self._take(job for job in answer.jobs if any(is_answer_for(job, i) for i in wanted))
        absent = [i for i in open_ids if i not in seen]
        if absent and self._now() - self._accounted >= ACCOUNTING:
            self._accounted = self._now()
            past = self._scheduler.account(self._asked(absent), self._since(absent))
            told = self._take((job for job in past.jobs if job.is_over), only=frozenset(absent))
            absent = [i for i in absent if i not in told]
            self._left(absent, NO_ACCOUNTING if past.none_kept else END_UNKNOWN, past.note)
            # asked twice, a while apart, accounting has answered both times: it will not tell
            for i in absent if past.complete else ():
                if past.none_kept or self._now() - self._untold.setdefault(i, self._now()) >= ACCOUNTING:
                    self._given_up.add(i)
        else:  # too soon to ask accounting: what it last said of them stands
            self._left([i for i in absent if self._found[i].status.outcome is not Outcome.UNKNOWN], END_UNKNOWN, "")

    def _asked(self, ids: Sequence[JobId]) -> list[JobId]:
        """The ids that were typed, as far as one of these tasks is meant by them."""
        return [one for one in self._ids if any(i.raw == one.raw and one.task in (None, i.task) for i in ids)]

    def _take(self, jobs: Iterable[JobStatus], only: frozenset[JobId] | None = None) -> set[JobId]:
        seen = set()
        for row in jobs:
            for job in split_tasks(row):
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
