"""What the view queries from a Cluster, and what it does with a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from clusterrun.base.errors import RequestError
from clusterrun.base.job import HELD, Outcome
from clusterrun.logs.files import Source
from clusterrun.records import launches, progress, run_record
from clusterrun.records.progress import Metrics, RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.state.filters import arrange
from clusterrun.state.reconcile import Listing, RunState, runs_of
from clusterrun.state.show import handle, state_row

if TYPE_CHECKING:  # the caller has imported it
    from clusterrun.cluster import Cluster


def explain(cluster: Cluster, state: RunState) -> list[str]:
    """Return what ``clusterrun why`` prints: the job, its state and the explanation, as lines."""
    from clusterrun.why import ended, pending  # only the key `e` needs them

    _, name, state_text, *_ = state_row(state)
    facts: list[tuple[str, Sequence[str]]] = [("job", [f"{handle(state)}  {name}"]), ("state", [state_text])]
    if state.status.state == "PENDING":
        facts += pending.explain(cluster.scheduler(state.scheduler), state).facts()
    elif state.status.outcome is Outcome.RUNNING:
        facts.append(("here", pending.running(state)))
    else:
        facts += ended.explain(cluster, state).facts()
    return [f"{'' if n else label:>9}  {line}" for label, lines in facts for n, line in enumerate(lines)]


KEPT = 3600
"""Seconds for which an ended job stays on the screen."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """What a run's files contained at ``at`` (seconds since the epoch): ranks, last metrics, number of attempts.

    ``losses`` is a curve, with what it is drawn over. ``ended`` is True if the newest attempt has an end record.
    """

    ranks: tuple[RankProgress, ...] = ()
    metrics: Metrics | None = None
    losses: tuple[list[tuple[float, float]], str] = ([], "")
    attempt: int = 0
    ended: bool = False
    at: float = 0.0


class TopData:
    """One user's jobs: the active ones, those that ended while on the screen, and ``pinned``.

    ``polled``, if given, is queried for the list. ``cluster`` is queried before anything is changed.
    """

    def __init__(self, cluster: Cluster, pinned: RunRecord | None = None, *, polled: Cluster | None = None) -> None:
        self._cluster, self._polled = cluster, polled or cluster
        self._seen = {pinned.submission.key: pinned} if pinned is not None else {}

    @property
    def user(self) -> str:
        return self._cluster.user

    def jobs(self) -> Listing:
        """Return the jobs ``in_order``; an ended one stays for an hour. Raises SchedulerError without any answer."""
        listing = self._polled.listing()
        found = listing.states
        live = {run.submission.key: run for run in runs_of(found)}
        gone = [run for key, run in self._seen.items() if key not in live]
        ended = self._polled.states(gone, listing.answer) if gone else []
        self._seen = live | {state.key: state.run for state in ended if not self._long_over(state)}
        return listing._replace(states=in_order([*ended, *found]))

    def ranks(self, state: RunState, only: frozenset[str] | None = progress.SCREEN) -> Ranks:
        """Return what the files of a job's run contain; of each rank ``only`` these fields, all with None."""
        run = state.record
        folders = run_record.attempts(run, state.status.id.task) if run is not None else []
        if run is None or not folders:
            return Ranks(at=time.time())
        ranks = tuple(progress.read_ranks(folders[-1], only))
        if not ranks:  # a custom launcher, or an older worker
            started = progress.started_ranks(folders[-1])
            ranks = tuple(RankProgress(rank=rank["rank"], node=rank["node"], time=0.0) for rank in started)
        ended = (folders[-1] / "end.json").exists()
        return Ranks(
            ranks, progress.last_metrics(run), progress.loss_curve(run), len(folders), ended=ended, at=time.time()
        )

    def logs(self, state: RunState) -> Callable[[], Source] | None:
        """Return what finds the logs of a job by its files, None if they are not known here."""
        run = state.record
        if run is None or run.job_id is None:
            return None
        return partial(launches.timed_log_source, run, run.job_id._replace(task=state.status.id.task))

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
            now = "now a group of array tasks" if same else "no longer in the queue"
            raise RequestError(f"{handle(state)} is {now}, so nothing was changed")
        return same

    def _long_over(self, state: RunState) -> bool:
        ended = state.status.ended
        return is_over(state) and ended is not None and time.time() - ended > KEPT


def in_order(states: Sequence[RunState]) -> tuple[RunState, ...]:
    """Return the rows of jobs: those that run, those that wait, and those that have ended, each the newest first.

    Runs come before the jobs of other tools, whose ranks and logs are not known here.
    """

    def place(state: RunState) -> tuple[int, bool]:
        return 0 if state.status.has_started else 1 + is_over(state), state.record is None

    rows = arrange(states)
    rows.reverse()
    return tuple(sorted(rows, key=place))


def key_of(state: RunState) -> str:
    """Return the key of a job's row, the same for its whole life; that of array tasks in one row has their state."""
    job, run = state.status, state.record
    name = _run_key(run) if run is not None else str(job.id._replace(task=None))
    if job.tasks:
        return f"{name} {job.state}"
    return name if job.id.task is None else f"{name} {job.id.task}"


def _run_key(run: RunRecord) -> str:
    """Return the key of one of a run's jobs: of its first submission the run id."""
    first = min(run.submissions, key=lambda one: one.at)
    return run.run_id if run.submission.token == first.token else f"{run.run_id} {run.submission.token}"


def is_over(state: RunState) -> bool:
    """Return whether a job has ended, as far as is known."""
    return state.status.outcome not in (Outcome.RUNNING, Outcome.UNKNOWN)
