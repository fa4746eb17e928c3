"""Why a job waits, where it stands or how it ended, as lines: what ``clusterrun why`` prints."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
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
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import handle, state_row

Named = Sequence[tuple[str, Sequence[str]]]


def explain(cluster: Any, state: RunState) -> list[str]:
    """Which job and its state, then the explanation, each fact named once; an error of ours passes through."""
    _, name, word, *_ = state_row(state)
    named = [("job", [f"{handle(state)}  {name}"]), ("state", [word]), *_why(cluster, state)]
    return [f"{'' if n else name:>9}  {line}" for name, lines in named for n, line in enumerate(lines)]


def _why(cluster: Any, state: RunState) -> Named:
    job = state.status
    if job.state == "PENDING":
        scheduler = cluster.scheduler(state.record.scheduler if state.record else "slurm")
        told: Named = import_module("clusterrun.why.pending").explain(scheduler, state).facts()
    elif job.outcome is Outcome.RUNNING:
        told = [("here", import_module("clusterrun.why.pending").running(state))]
    else:
        told = import_module("clusterrun.why.ended").explain(cluster, state).facts()
    return told


KEPT = 3600
"""Seconds for which a job that is over stays on the screen."""


class Asked(Protocol):
    """The part of :class:`clusterrun.cluster.Cluster` that the view needs."""

    user: str
    heard_ago: float
    listed: Answer | None

    def listing(self) -> list[RunState]: ...
    def states(self, runs: Sequence[RunRecord], answer: Answer | None = None) -> list[RunState]: ...
    def status(self, texts: Sequence[str]) -> list[RunState]: ...
    def cancel(self, targets: Sequence[RunState]) -> Sequence[tuple[RunState, Any]]: ...
    def hold(self, target: RunState, *, release: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Ranks:
    """What a run's files told at ``at`` (seconds since the epoch): its ranks, its last figures, its attempt's number.

    ``ended`` tells that the newest attempt has left its end record.
    """

    ranks: tuple[RankProgress, ...] = ()
    metrics: Metrics | None = None
    attempt: int = 0
    ended: bool = False
    at: float = 0.0


class Source:
    """One user's jobs: those that are not over, those that ended while they were watched, and ``pinned``.

    ``polled``, if given, is asked for the list instead of ``cluster``, which is asked before anything is changed, and
    ``told`` is where it puts what could not be asked.
    """

    def __init__(
        self, cluster: Asked, pinned: RunRecord | None = None, *, polled: Asked | None = None,
        told: list[str] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._cluster, self._polled, self._now = cluster, polled or cluster, now
        self._told = told if told is not None else []
        self._seen = {pinned.run_id: pinned} if pinned is not None else {}
        self.heard_ago = 0.0  # by how many seconds the last list was older than its question

    @property
    def user(self) -> str:
        return self._cluster.user

    def jobs(self) -> list[RunState]:
        """The jobs, newest first; one that has ended stays for an hour. Raises SchedulerError where nobody answers."""
        self._told.clear()
        found = self._polled.listing()
        self.heard_ago = self._polled.heard_ago
        live = {state.record.run_id: state.record for state in found if state.record is not None}
        gone = [run for run in self._seen.values() if run.run_id not in live]
        ended = self._polled.states(gone, self._polled.listed) if gone else []
        self._seen = live | {
            s.record.run_id: s.record for s in ended if s.record is not None and not self._long_over(s)
        }
        return list(reversed(arrange([*ended, *found])))

    def ranks(self, state: RunState) -> Ranks:
        """What the files of a job's own run tell."""
        run = state.record
        folders = run_record.attempts(run, state.status.id.task) if run is not None else []
        if run is None or not folders:
            return Ranks(at=self._now())
        told = tuple(progress.read_ranks(folders[-1])) or _from_start(folders[-1])
        ended = (folders[-1] / "end.json").exists()
        return Ranks(told, progress.last_metrics(run), len(folders), ended, self._now())

    def logs(self, state: RunState) -> LogSource | None:
        """The logs of a job, None where they are not known here."""
        run = state.record
        if run is None or run.job_id is None:
            return None
        return run_logs.source_of(run, replace(run.job_id, task=state.status.id.task))

    def cancel(self, state: RunState) -> str:
        """Cancel a job as it stands now; returns what became of it."""
        ((target, result),) = self._cluster.cancel(self._again(state))
        said = f": {result.said}" if result.said else ""
        return f"{'cancelled' if result.done else 'not cancelled'} {handle(target)}{said}"

    def hold(self, state: RunState) -> str:
        """Hold a job that waits, or release it where it is held; returns what was done."""
        (target,) = self._again(state)
        release = any(word in target.status.reason for word in HELD)
        self._cluster.hold(target, release=release)
        return f"{'released' if release else 'held'} {handle(target)}"

    def explain(self, state: RunState) -> list[str]:
        """Why a job waits or how it ended, in lines."""

        return explain(self._cluster, *self._again(state))

    def _again(self, state: RunState) -> list[RunState]:
        """The job as the scheduler shows it now: what is changed must have been seen to be ours just before."""
        if state.status.tasks:
            base = state.status.id.base
            raise RequestError(f"{handle(state)} are tasks of an array", hint=f"`clusterrun cancel|why {base}`")
        found = self._cluster.status([handle(state)])
        same = [one for one in found if key_of(one) == key_of(state)]
        if len(same) != 1:
            raise RequestError(f"{handle(state)} is not one job any more")
        return same

    def _long_over(self, state: RunState) -> bool:
        ended = state.status.ended
        return is_over(state) and ended is not None and self._now() - ended > KEPT


def key_of(state: RunState) -> str:
    """What a job is known by on the screen, whatever becomes of it; the tasks of an array that share a row, by their
    state."""
    job, run = state.status, state.record
    name = run.run_id if run is not None else job.id.base
    if job.tasks:
        return f"{name} {job.state}"
    return name if job.id.task is None else f"{name} {job.id.task}"


def _from_start(attempt: Path) -> tuple[RankProgress, ...]:
    """Which rank is where, of ranks that keep no progress (a launcher of the user's, a worker of an older version)."""
    start = rank_records.load_start(attempt) or {"ranks": []}
    return tuple(RankProgress(rank=entry["rank"], node=entry["node"], time=0.0) for entry in start["ranks"])


def is_over(state: RunState) -> bool:
    """Whether a job will not write any more, as far as is known."""
    return state.status.outcome not in (Outcome.RUNNING, Outcome.UNKNOWN)
