"""Watch external jobs (jobs without a run record): one squeue for all of them, one sacct for those that left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from clusterrun.base.job import JobId, JobStatus, Outcome, split_tasks
from clusterrun.scheduler import Scheduler
from clusterrun.state.external import END_UNKNOWN, NO_ACCOUNTING, WINDOW, is_answer_for, query_states
from clusterrun.state.pace import WATCH_FIRST, WATCH_LONGEST, QueryTimer
from clusterrun.state.reconcile import Listing, RunState

#: Seconds between two queries of accounting. It may record an end late, so a job is given up after two of them.
ACCOUNTING = 60.0


class ExternalWatch:
    """A watch over external jobs; an array counts as its tasks. Raises NoSuchJob for an unknown id.

    One squeue queries all of them, one sacct those that have left the queue; jobs that have ended are not queried.
    With ``follow`` squeue is run only while their logs are quiet, at most every ``WATCH_LONGEST`` seconds.
    """

    def __init__(
        self, ids: Sequence[JobId], scheduler: Scheduler, *, follow: bool = False,
        now: Callable[[], float] = time.monotonic, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._ids, self._scheduler, self._now, self._clock = list(ids), scheduler, now, clock
        self._found: dict[JobId, RunState] = {}
        self._missing_since: dict[JobId, float] = {}  # when accounting first answered without them
        self._given_up: set[JobId] = set()
        self._accounted = -ACCOUNTING
        self._timer = QueryTimer(WATCH_LONGEST if follow else WATCH_FIRST, now)
        for rows in query_states(ids, scheduler, clock()).values():
            self._update(row.status for row in rows)
        self._timer.on_query()

    def poll(self, *, due: bool = False) -> Listing:
        open_ids = [i for i, state in self._found.items() if not self.is_settled(state)]
        if open_ids and (due or self._timer.is_due()):
            self._query(open_ids)
            self._timer.on_query()
        return Listing(list(self._found.values()))

    def on_output(self) -> None:
        self._timer.on_output()

    def has_news(self) -> bool:
        """Return False: an external job has no records here."""
        return False

    def is_settled(self, state: RunState) -> bool:
        return state.status.is_final or state.status.id in self._given_up

    def _query(self, open_ids: Sequence[JobId]) -> None:
        wanted = self._requested(open_ids)
        answer = self._scheduler.query(wanted)
        if not answer.complete:
            for i in open_ids:
                self._found[i] = replace(self._found[i], note=answer.note)
            return
        seen = self._update(job for job in answer.jobs if any(is_answer_for(job, i) for i in wanted))
        absent = [i for i in open_ids if i not in seen]
        if absent and self._now() - self._accounted >= ACCOUNTING:
            self._accounted = self._now()
            past = self._scheduler.account(self._requested(absent), self._since(absent))
            ended = self._update((job for job in past.jobs if job.is_over), only=frozenset(absent))
            absent = [i for i in absent if i not in ended]
            self._mark_unknown(absent, NO_ACCOUNTING if past.no_accounting else END_UNKNOWN, past.note)
            for i in absent if past.complete else ():
                missing_since = self._missing_since.setdefault(i, self._now())
                if past.no_accounting or self._now() - missing_since >= ACCOUNTING:
                    self._given_up.add(i)
        else:  # too early to query accounting again: its last answer counts
            self._mark_unknown(
                [i for i in absent if self._found[i].status.outcome is not Outcome.UNKNOWN], END_UNKNOWN, ""
            )

    def _requested(self, ids: Sequence[JobId]) -> list[JobId]:
        """Return the requested ids that these tasks belong to."""
        return [one for one in self._ids if any(i.raw == one.raw and one.task in (None, i.task) for i in ids)]

    def _update(self, jobs: Iterable[JobStatus], only: frozenset[JobId] | None = None) -> set[JobId]:
        """Take over the states of jobs that are not settled, and return the ids found."""
        seen = set()
        for row in jobs:
            for job in split_tasks(row):
                known = self._found.get(job.id)
                if (only is not None and job.id not in only) or (known is not None and self.is_settled(known)):
                    continue
                self._found[job.id] = RunState(None, job)
                self._missing_since.pop(job.id, None)
                seen.add(job.id)
        return seen

    def _mark_unknown(self, absent: Sequence[JobId], reason: str, note: str) -> None:
        """Set the state of jobs that left the queue without a known end."""
        for i in absent:
            job = self._found[i].status
            job = replace(job, state="UNKNOWN", outcome=Outcome.UNKNOWN, reason=reason, source="squeue")
            self._found[i] = RunState(None, job, note)

    def _since(self, ids: Sequence[JobId]) -> int:
        times = [at for i in ids if (at := self._found[i].status.submitted) is not None]
        return min(times) - 3600 if times else int(self._clock()) - WINDOW
