"""What the view queries from a Cluster, and what it does with a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from clusterrun.errors import RequestError
from clusterrun.job import Outcome
from clusterrun.logs import Source as LogSource
from clusterrun.records import progress, rank_records, run_logs, run_record
from clusterrun.records.progress import Metrics, RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.scheduler import Answer
from clusterrun.scheduler.slurm.scontrol import HELD
from clusterrun.state.filters import arrange
from clusterrun.state.reconcile import Listing, RunState
from clusterrun.state.show import handle, state_row

Facts = Sequence[tuple[str, Sequence[str]]]


def explain(cluster: Any, state: RunState) -> list[str]:
    """Return what ``clusterrun why`` prints: the job, its state and the explanation, as lines."""
    _, name, state_text, *_ = state_row(state)
    facts = [("job", [f"{handle(state)}  {name}"]), ("state", [state_text]), *_find_cause(cluster, state)]
    return [f"{'' if n else label:>9}  {line}" for label, lines in facts for n, line in enumerate(lines)]


def _find_cause(cluster: Any, state: RunState) -> Facts:
    from clusterrun.why import ended, pending  # only the key `e` needs them

    job = state.status
    if job.state == "PENDING":
        return pending.explain(cluster.scheduler(state.record.scheduler if state.record else "slurm"), state).facts()
    if job.outcome is Outcome.RUNNING:
        return [("here", pending.running(state))]
    return ended.explain(cluster, state).facts()


KEPT = 3600
"""Seconds for which an ended job stays on the screen."""


class ViewedCluster(Protocol):
    """The part of :class:`clusterrun.cluster.Cluster` that the view needs."""

    user: str

    def listing(self) -> Listing: ...
    def states(self, runs: Sequence[RunRecord], answer: Answer | None = None) -> list[RunState]: ...
    def status(self, texts: Sequence[str]) -> list[RunState]: ...
    def cancel(self, targets: Sequence[RunState]) -> Sequence[tuple[RunState, Any]]: ...
    def hold(self, target: RunState, *, release: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Ranks:
    """What a run's files contained at ``at`` (seconds since the epoch): ranks, last metrics, number of attempts.

    ``ended`` is True if the newest attempt has an end record.
    """

    ranks: tuple[RankProgress, ...] = ()
    metrics: Metrics | None = None
    attempt: int = 0
    ended: bool = False
    at: float = 0.0


class Source:
    """One user's jobs: the active ones, those that ended while on the screen, and ``pinned``.

    ``polled``, if given, is queried for the list, and sends its notices to ``problems``. ``cluster`` is queried before
    anything is changed.
    """

    def __init__(
        self, cluster: ViewedCluster, pinned: RunRecord | None = None, *, polled: ViewedCluster | None = None,
        problems: list[str] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._cluster, self._polled, self._now = cluster, polled or cluster, now
        self._problems = problems if problems is not None else []
        self._seen = {pinned.run_id: pinned} if pinned is not None else {}

    @property
    def user(self) -> str:
        return self._cluster.user

    def jobs(self) -> Listing:
        """Return the jobs, newest first; an ended one stays for an hour. Raises SchedulerError without any answer."""
        self._problems.clear()
        listing = self._polled.listing()
        found = listing.states
        live = {state.record.run_id: state.record for state in found if state.record is not None}
        gone = [run for run in self._seen.values() if run.run_id not in live]
        ended = self._polled.states(gone, listing.answer) if gone else []
        self._seen = live | {
            s.record.run_id: s.record for s in ended if s.record is not None and not self._long_over(s)
        }
        return listing._replace(states=tuple(reversed(arrange([*ended, *found]))))

    def ranks(self, state: RunState) -> Ranks:
        """Return what the files of a job's run contain."""
        run = state.record
        folders = run_record.attempts(run, state.status.id.task) if run is not None else []
        if run is None or not folders:
            return Ranks(at=self._now())
        ranks = tuple(progress.read_ranks(folders[-1])) or _ranks_of_start(folders[-1])
        ended = (folders[-1] / "end.json").exists()
        return Ranks(ranks, progress.last_metrics(run), len(folders), ended, self._now())

    def logs(self, state: RunState) -> LogSource | None:
        """Return the logs of a job, None if they are not known here."""
        run = state.record
        if run is None or run.job_id is None:
            return None
        return run_logs.source_of(run, run.job_id._replace(task=state.status.id.task))

    def cancel(self, state: RunState) -> str:
        """Cancel a job in its current state; return a message."""
        ((target, result),) = self._cluster.cancel(self._query_again(state))
        reason = f": {result.detail}" if result.detail else ""
        return f"{'cancelled' if result.done else 'not cancelled'} {handle(target)}{reason}"

    def hold(self, state: RunState) -> str:
        """Hold a pending job, or release a held one; return a message."""
        (target,) = self._query_again(state)
        release = any(word in target.status.reason for word in HELD)
        self._cluster.hold(target, release=release)
        return f"{'released' if release else 'held'} {handle(target)}"

    def explain(self, state: RunState) -> list[str]:
        """Return the explanation of a job, as lines."""
        return explain(self._cluster, *self._query_again(state))

    def _query_again(self, state: RunState) -> list[RunState]:
        """Return the job as the scheduler shows it now: only a job that was just seen to be the user's is changed."""
        if state.status.tasks:
            base = state.status.id.base
            raise RequestError(
                f"{handle(state)} is a group of array tasks",
                hint=f"use `clusterrun cancel {base}` or `clusterrun why {base}`",
            )
        found = self._cluster.status([handle(state)])
        same = [one for one in found if key_of(one) == key_of(state)]
        if len(same) != 1:
            raise RequestError(f"{handle(state)} is no longer a single job")
        return same

    def _long_over(self, state: RunState) -> bool:
        ended = state.status.ended
        return is_over(state) and ended is not None and self._now() - ended > KEPT


def key_of(state: RunState) -> str:
    """Return the key of a job's row, the same for its whole life; that of array tasks in one row has their state."""
    job, run = state.status, state.record
    name = run.run_id if run is not None else job.id.base
    if job.tasks:
        return f"{name} {job.state}"
    return name if job.id.task is None else f"{name} {job.id.task}"


def _ranks_of_start(attempt: Path) -> tuple[RankProgress, ...]:
    """Return the ranks and their nodes for ranks without progress files (a custom launcher, an older worker)."""
    start = rank_records.load_start(attempt) or {"ranks": []}
    return tuple(RankProgress(rank=entry["rank"], node=entry["node"], time=0.0) for entry in start["ranks"])


def is_over(state: RunState) -> bool:
    """Return whether a job has ended, as far as is known."""
    return state.status.outcome not in (Outcome.RUNNING, Outcome.UNKNOWN)
