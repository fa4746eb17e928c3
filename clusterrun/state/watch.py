"""Watch jobs until they end, with few queries to the scheduler.

The runs' own end records are checked every second, which costs a file system little. The scheduler is queried rarely,
and at once when a record appears.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from clusterrun.base.job import MAY_RETURN, Outcome
from clusterrun.base.units import plural
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder.safe_files import written_at
from clusterrun.scheduler.slurm.cache import FRESH
from clusterrun.state.external import ExternalJobs
from clusterrun.state.pace import WATCH_FIRST, WATCH_LONGEST, QueryTimer
from clusterrun.state.reconcile import Listing, RunState, runs_of

BELIEVED_AFTER = 20.0
"""Seconds for which a run must be unknown or lost, while the scheduler answers, before a watch ends."""
_POLL = 0.25  # seconds between two polls of a watch in its own thread


class Watch:
    """Jobs that are watched until they end: runs, whose states ``query`` returns, and ``others``, external jobs.

    With ``follow`` a reader of the logs calls ``on_output``: then the scheduler is queried only while the logs are
    quiet, at most every ``WATCH_LONGEST`` seconds, and at once when an end record appears. ``cached_query`` may return
    a cached answer; it is used while nothing has happened for a while.
    """

    def __init__(
        self, runs: Sequence[RunRecord], query: Callable[[Sequence[RunRecord]], Sequence[RunState]],
        cached_query: Callable[[Sequence[RunRecord]], Listing] | None = None, others: ExternalJobs | None = None, *,
        follow: bool = False, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._query, self._cached_query, self._others = query, cached_query, others
        self._now, self._follow = now, follow
        self._runs = list(runs)
        self._timer = QueryTimer(WATCH_LONGEST if follow or cached_query is not None else WATCH_FIRST, now)
        self._marks: tuple[_Mark, ...] = ()
        self._doubtful_since: dict[str, float] = {}
        self._latest = Listing()
        if others is not None and not runs:  # they were queried just now
            self._timer.on_query()

    def poll(self, *, due: bool = False) -> Listing:
        """Return the states: from a new query if it is time or ``due``, else from the last one."""
        marks = tuple(map(_mark, self._runs))
        has_ended = any(mark.ended for mark in marks)
        is_first = len(self._latest.states) < len(self._runs)
        if marks != self._marks and not is_first:
            self._on_news(marks, has_ended=has_ended)
        self._marks = marks
        if due or is_first or self._timer.is_due(despite_output=has_ended):
            self._query_all()
            if self._others is not None and not is_first:  # they were queried when the watch began
                self._others.query()
        if self._others is None:
            return self._latest
        return self._latest._replace(states=[*self._latest.states, *self._others.states])

    def on_output(self) -> None:
        """Note that new lines of a log have arrived, so the job is alive."""
        self._timer.on_output()

    def has_news(self) -> bool:
        """Return whether the runs' own records changed since the last poll; external jobs have none here."""
        return tuple(map(_mark, self._runs)) != self._marks

    def is_settled(self, state: RunState) -> bool:
        """Return whether a job has ended for good, or its end will never be known.

        A doubtful state of a run is final only after ``BELIEVED_AFTER`` seconds.
        """
        if state.record is None:
            assert self._others is not None
            return self._others.is_settled(state)
        if not _is_doubtful(state):
            return state.status.is_over
        return self._now() - self._doubtful_since.get(state.key, math.inf) >= BELIEVED_AFTER

    def _on_news(self, marks: Sequence[_Mark], *, has_ended: bool) -> None:
        """Read changed records, and query soon; of a run that (re)started its log says more than the queue."""
        pairs = list(zip(marks, self._marks, strict=True))
        self._runs = [
            run if new.written == old.written else _reread(run)
            for run, (new, old) in zip(self._runs, pairs, strict=True)
        ]
        has_started = any(new.starts > old.starts for new, old in pairs)
        if self._follow and has_started and not has_ended:
            self._timer.restart(WATCH_LONGEST, delay=WATCH_LONGEST)
        else:
            self._timer.restart(1.0)

    def _query_all(self) -> None:
        if self._cached_query is not None and self._timer.wait >= FRESH:
            self._latest = self._cached_query(self._runs)
        else:
            self._latest = Listing(self._query(self._runs))
        self._timer.on_query(self._latest.age)
        self._runs = runs_of(self._latest.states)
        doubtful = [state for state in self._latest.states if _is_doubtful(state) and not state.note]
        now = self._now()
        self._doubtful_since = {state.key: self._doubtful_since.get(state.key, now) for state in doubtful}


def wait_for_end(
    watch: Watch, notify: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> list[RunState]:
    """Wait until all watched jobs have ended, and return their last states; report each change in a line."""
    reported: dict[str, str] = {}
    while True:
        states = list(watch.poll().states)
        if all(map(watch.is_settled, states)):
            return states
        for key, line in _format_changes(states).items():
            if reported.get(key) != line:
                reported[key] = line
                notify(line)
        sleep(1.0)


def _format_changes(states: Sequence[RunState]) -> dict[str, str]:
    """Return a line per job, one for all tasks of an array, and one for all jobs with the same note."""
    lines: dict[str, str] = {}
    arrays: dict[str, Counter[str]] = {}
    silent: dict[str, list[str]] = {}
    for state in states:
        job = state.status
        if state.record is None and job.id.task is not None:
            arrays.setdefault(job.id.raw, Counter())[job.state] += 1
        elif state.note:
            silent.setdefault(state.note, []).append(str(job.id))
        else:
            lines[state.key] = f"job {job.id}: {job.state} {job.reason}".rstrip()
    for raw, counts in arrays.items():
        lines[raw] = f"job {raw}: " + ", ".join(
            f"{plural(count, 'task')} {word}" for word, count in sorted(counts.items())
        )
    for note, jobs in silent.items():
        which = f"job {jobs[0]}" if len(jobs) == 1 else f"{len(jobs)} jobs"
        lines["silent"] = f"{which}: state unknown ({note}); still waiting"
    return lines


def records_changed_at(run: RunRecord) -> float:
    """Return when a run's own records last changed, in epoch seconds.

    Infinite if they know more than Slurm may know: an end, or a submission without a job id.
    """
    folders = run_record.attempts(run)
    if run.job_id is None or _have_ended(folders):
        return math.inf
    paths = [run.run_dir / name for name in ("submissions", "claims", "attempts")]
    paths += [folder / "start.json" for folder in folders[-1:]]
    return max(map(written_at, paths))


def _is_doubtful(state: RunState) -> bool:
    """Return whether a state may be temporary: unknown, lost, or an end that a requeue turns into PENDING."""
    return state.status.outcome in (Outcome.UNKNOWN, Outcome.LOST) or state.status.state in MAY_RETURN


class _Mark(NamedTuple):
    """A run's own records: how often it started, whether the last attempt ended, when a submission was written."""

    starts: int
    ended: bool
    written: float


def _mark(run: RunRecord) -> _Mark:
    folders = run_record.attempts(run)
    written = written_at(run.run_dir / "submissions")  # a cancel from any shell is recorded there
    return _Mark(len(folders), _have_ended(folders), written)


def _reread(run: RunRecord) -> RunRecord:
    """Return a run as its folder has it now: another command may have cancelled it."""
    found = run_record.load(run.run_dir)
    same = [one for one in found.submissions if one.token == run.submission.token] if found is not None else []
    return found.as_submission(same[0]) if found is not None and same else run


def _have_ended(attempts: Sequence[Path]) -> bool:
    return bool(attempts) and (attempts[-1] / "end.json").exists()


class WatchThread:
    """A watch in a thread of its own, so that a slow scheduler delays no line of a log.

    ``states`` are the newest; ``settled`` is true once all of them are.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.states: Sequence[RunState] = ()
        self.settled = False
        self._error: BaseException | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def poll(self) -> Sequence[RunState]:
        """Return the newest states, none before the first answer. Raises what the watch raised."""
        if self._error is not None:
            raise self._error
        return self.states

    def close(self) -> None:
        """Stop querying."""
        self._closed.set()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                states = self.watch.poll().states
                settled = bool(states) and all(map(self.watch.is_settled, states))
                self.states, self.settled = states, settled
                if settled:
                    return
                self._closed.wait(_POLL)
        except BaseException as error:
            self._error = error
