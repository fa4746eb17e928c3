"""Watching runs until they are over, sparing the scheduler.

The runs' own end records are looked at every second, which costs a file system nothing; the scheduler is asked
rarely, and at once when a record appears.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from clusterrun.job import MAY_RETURN, Outcome
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.scheduler.factory import FIRST, LONGEST
from clusterrun.scheduler.slurm.cache import FRESH
from clusterrun.state.reconcile import RunState

QUIET = 3.0
"""Seconds without a new line after which a log no longer says that its job lives."""
BELIEVED_AFTER = 20.0
"""Seconds for which a run must be unknown or lost, the scheduler answering, before a watch ends on it."""


class Watch:
    """Asks ``ask`` for the states of runs when it is worth it; ``settled`` tells whether one is over for good.

    With ``sparing`` somebody reads the logs and tells ``grew``: then the scheduler is asked only while these are quiet,
    at most every ``LONGEST`` seconds, and at once when an end record appears. ``lately`` asks too, or tells what was
    heard some seconds ago, and how many: it does while nothing has happened for a while.
    """

    def __init__(
        self,
        runs: Sequence[RunRecord],
        ask: Callable[[Sequence[RunRecord]], Sequence[RunState]],
        *,
        sparing: bool = False,
        lately: Callable[[Sequence[RunRecord]], tuple[Sequence[RunState], float]] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._lately, self._now, self._sparing = ask, lately, now, sparing
        self._runs = list(runs)
        self._next, self._wait = now(), LONGEST if sparing or lately is not None else FIRST
        self._grew = -QUIET
        self._marks: tuple[_Mark, ...] = ()
        self._dark_since: dict[str, float] = {}
        self.states: list[RunState] = []

    def look(self, *, due: bool = False) -> list[RunState]:
        """The states, fresh where ``due``, it is time or an end record has come, else those of the last look."""
        marks = tuple(_mark(run) for run in self._runs)
        ended = any(mark.ended for mark in marks)
        if marks != self._marks and self.states:
            begun = any(new.starts > old.starts for new, old in zip(marks, self._marks, strict=True))
            if self._sparing and begun and not ended:  # it has begun, perhaps again: its log says more than a queue
                self._next, self._wait = self._now() + LONGEST, LONGEST
            else:
                self._next, self._wait = self._now(), 1.0
        self._marks = marks
        quiet = ended or self._now() - self._grew >= QUIET
        if due or not self.states or (quiet and self._now() >= self._next):
            self.states, age = self._asked()
            self._runs = [s.record if s.record is not None else r for s, r in zip(self.states, self._runs, strict=True)]
            self._next = self._now() - age + self._wait * (0.8 + 0.4 * random.random())
            self._wait = min(self._wait * 1.5, LONGEST)
            for state, run in zip(self.states, self._runs, strict=True):
                if _doubtful(state) and not state.note:
                    self._dark_since.setdefault(run.run_id, self._now())
                else:
                    self._dark_since.pop(run.run_id, None)
        return self.states

    def grew(self) -> None:
        """There are new lines in a log: the job lives."""
        self._grew = self._now()

    def has_news(self) -> bool:
        """Whether the runs' own files tell of something that they did not at the last look."""
        return tuple(_mark(run) for run in self._runs) != self._marks

    def settled(self, state: RunState) -> bool:
        """Whether a state is an end; a doubtful one only after a while of good answers."""
        if state.status.outcome is Outcome.RUNNING:
            return False
        if not _doubtful(state):
            return True
        since = self._dark_since.get(state.record.run_id) if state.record else None
        return since is not None and self._now() - since >= BELIEVED_AFTER

    def _asked(self) -> tuple[list[RunState], float]:
        """The states as they are now, or were some seconds ago."""
        if self._lately is None or self._wait < FRESH:
            return list(self._ask(self._runs)), 0.0
        states, age = self._lately(self._runs)
        return list(states), age


class Watching(Protocol):
    """What can be waited for: runs, or jobs without a record."""

    def look(self) -> list[RunState]: ...
    def settled(self, state: RunState) -> bool: ...


def until_over(
    watches: Sequence[Watching], tell: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> list[RunState]:
    """Wait until everything that is watched is over, telling each change on the way in a line; returns how it ended."""
    said: dict[str, str] = {}
    while True:
        found = [(watch, state) for watch in watches for state in watch.look()]
        if all(watch.settled(state) for watch, state in found):
            return [state for _, state in found]
        for key, line in _lines([state for _, state in found]).items():
            if said.get(key) != line:
                said[key] = line
                tell(line)
        sleep(1.0)


def _lines(states: Sequence[RunState]) -> dict[str, str]:
    """A line for each job, one for all tasks of an array, and one for all of which the same is not known."""
    lines: dict[str, str] = {}
    arrays: dict[str, Counter[str]] = {}
    silent: dict[str, list[str]] = {}
    for state in states:
        job, run = state.status, state.record
        if run is None and job.id.task is not None:
            arrays.setdefault(job.id.raw, Counter())[job.state] += 1
        elif state.note:
            silent.setdefault(state.note, []).append(str(job.id))
        else:
            lines[run.run_id if run is not None else str(job.id)] = f"job {job.id}: {job.state} {job.reason}".rstrip()
    for raw, counts in arrays.items():
        lines[raw] = f"job {raw}: " + ", ".join(f"{count} tasks {word}" for word, count in sorted(counts.items()))
    for note, jobs in silent.items():
        which = f"job {jobs[0]}" if len(jobs) == 1 else f"{len(jobs)} jobs"
        lines["silent"] = f"{which}: not known now, still waiting: {note}"
    return lines


def changed_at(run: RunRecord) -> float:
    """When a run's own files last told of something new, in epoch seconds; infinite where they tell of more than Slurm
    may know: of an end, or of a job that has no id yet."""
    folders = run_record.attempts(run)
    if run.job_id is None or (folders and (folders[-1] / "end.json").exists()):
        return math.inf
    told = [run.run_dir / name for name in ("submissions", "claims", "attempts")]
    return max(run_record.written_at(path) for path in [*told, *(folder / "start.json" for folder in folders[-1:])])


def _doubtful(state: RunState) -> bool:
    """Unknown or lost, which may be a moment's, or an end that a requeue still turns into PENDING."""
    return state.status.outcome in (Outcome.UNKNOWN, Outcome.LOST) or state.status.state in MAY_RETURN


class _Mark(NamedTuple):
    """What a run's own files show: its starts, whether the newest has ended, when its submission was last written."""

    starts: int
    ended: bool
    written: int


def _mark(run: RunRecord) -> _Mark:
    folders = run_record.attempts(run)
    try:
        written = (run.run_dir / "submissions").stat().st_mtime_ns  # a cancel of ours, from any shell, is noted there
    except OSError:
        written = 0
    return _Mark(len(folders), bool(folders) and (folders[-1] / "end.json").exists(), written)


PAUSE = 0.25
"""Seconds between looks at the run's own files; the watch knows when the scheduler is worth asking."""


class Watcher:
    """A watch in a thread of its own, so that a slow scheduler delays no line of a log.

    ``states`` are the newest; ``settled`` is true once all of them have ended.

    ``grew`` is told that there are new lines.
    """

    def __init__(self, watch: Watching, *, grew: Callable[[], None] = lambda: None) -> None:
        self._watch, self.grew = watch, grew
        self.states: list[RunState] = []
        self.settled = False
        self._error: BaseException | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def look(self) -> Sequence[RunState]:
        """The newest states, none before the first answer; raises what the watch raised."""
        if self._error is not None:
            raise self._error
        return self.states

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                states = list(self._watch.look())
                settled = bool(states) and all(self._watch.settled(state) for state in states)
                self.states, self.settled = states, settled
                if settled:
                    return
                self._closed.wait(PAUSE)
        except BaseException as error:
            self._error = error
