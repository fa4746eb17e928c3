"""Following jobs of another tool: one job, or the tasks of an array side by side.

Each task that is read has a thread of its own, and at most ``AT_ONCE`` are, so that an array of a thousand does not
open two thousand files; a task whose turn has not come loses nothing, its files are read when it has.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from clusterrun.cli.follow import Missed, exit_code, goes_on, report_end, state_line
from clusterrun.cli.logfiles import Theirs, check_readable, files_of, source_of, theirs_now
from clusterrun.errors import ClusterrunError
from clusterrun.job import JobId
from clusterrun.logs import LineFilter, Look, Notice, Source, show_following
from clusterrun.logs.places import Place
from clusterrun.logs.select import Choice
from clusterrun.scheduler import Scheduler
from clusterrun.state.external_watch import ExternalWatch
from clusterrun.state.pace import WATCH_LONGEST
from clusterrun.state.reconcile import RunState
from clusterrun.state.watch import WatchThread
from clusterrun.terminal.ui import Ui

AT_ONCE = 32
"""Tasks that are read at the same time: two files each."""
LOOK = 1.0
"""Seconds between looks for files that are not there yet."""
_MANY = 4  # tasks up to which each one's end is told in a line of its own

Piece = tuple[JobId, bytes | Notice | BaseException | None]
Follow = Callable[..., object]


class Whereabouts:
    """Where another tool's tasks write; Slurm is queried again once they started, every ``WATCH_LONGEST`` s at most.

    A node's name in a file's name (%N) is known only then. A file that is there shows that its task has begun before
    the queue, which is asked rarely, says so.
    """

    def __init__(self, theirs: Theirs, ask: Callable[[], Theirs], now: Callable[[], float] = time.monotonic) -> None:
        self._theirs, self._ask, self._now = theirs, ask, now
        self._asked = self._answered = -math.inf
        self._begun: dict[JobId, float] = {}  # when a task whose names were not whole was first seen to have begun

    def place(self, job: JobId, *, begun: bool, over: bool) -> Place | None:
        """The files of a task, None while their names are not known; what is known where Slurm knows no more."""
        place = self._theirs.place(job)
        if place is not None and place.is_whole:
            return place
        if not (begun or over or (place is not None and any(map(os.path.exists, files_of(place))))):
            return None
        since = self._begun.setdefault(job, self._now())
        if self._answered < since and self._now() - self._asked >= (LOOK if over else WATCH_LONGEST):
            self._asked = self._now()
            with contextlib.suppress(ClusterrunError):  # forgotten, or silent: what is known stays
                self._theirs, self._answered = self._ask(), self._asked
            place = self._theirs.place(job)
        known = over or self._answered >= since or (place is not None and place.is_whole)
        return place if known else None


def follow_theirs(
    ui: Ui,
    scheduler: Scheduler,
    theirs: Theirs,
    choice: Choice,
    want: LineFilter,
    look: Look,
    *,
    tail: int | None = None,
) -> int:
    """Print the lines of another tool's job, or of an array's tasks, until all are over; returns the exit code."""
    watch = ExternalWatch([theirs.job], scheduler, follow=True)
    watcher = WatchThread(watch)

    where = Whereabouts(theirs, partial(theirs_now, theirs.job, scheduler))

    def source(job: JobId, begun: bool, over: bool) -> Source | None:
        place = where.place(job, begun=begun, over=over)
        if place is None:
            return None
        for path in files_of(place):
            check_readable(path, job)
        return source_of(place, choice, named=theirs.is_array)

    reading = _Reading(source, partial(show_following, want=want, look=look, tail=tail))
    said, missed = "", Missed(ui, theirs.job)
    try:
        while True:
            states = watcher.poll()
            if len(states) == 1 and not watcher.settled:  # of an array's tasks some have their files, mostly
                one = states[0].status
                place = None if reading.has_begun else where.place(one.id, begun=one.state != "PENDING", over=False)
                missed.look(place.out if place else None, one.state, time.monotonic())
            line = _line(states)
            if line != said and states and not watcher.settled and any(s.status.state != "RUNNING" for s in states):
                ui.note(line)
            said = line
            reading.begin(states, watch.is_settled)
            for piece in reading.pieces(0.1):
                if isinstance(piece, Notice):
                    ui.note(piece.text)
                else:
                    ui.log_bytes(piece)
                    watcher.on_output()
            if watcher.settled and reading.is_over(states):
                break
    except KeyboardInterrupt:
        goes_on(ui, theirs.job)
        raise
    finally:
        watcher.close()
    states = list(watcher.states)
    for job in reading.without:
        ui.note(_without(where.place(job, begun=True, over=True), job))
    if len(states) <= _MANY:
        return report_end(ui, states)
    ui.note(_line(states))
    return exit_code(states)


class _Reading:
    """The tasks that are read now, those that were, and the pieces that come from them."""

    def __init__(self, source: Callable[[JobId, bool, bool], Source | None], follow: Follow) -> None:
        self._source, self._follow = source, follow
        self._pieces: queue.Queue[Piece] = queue.Queue(maxsize=256)  # a slow reader of ours holds the threads back
        self._over: set[JobId] = set()
        self._now: dict[JobId, threading.Event] = {}
        self._done: set[JobId] = set()
        self._looked = -LOOK
        self.without: list[JobId] = []

    @property
    def has_begun(self) -> bool:
        """Whether a file of any task was there."""
        return bool(self._now or self._done)

    def begin(self, states: Sequence[RunState], settled: Callable[[RunState], bool]) -> None:
        """Begin with tasks whose files are there, as long as there is room; note which are over."""
        now = time.monotonic()
        look = now - self._looked >= LOOK  # a thousand tasks are a thousand looks
        self._looked = now if look else self._looked
        for state in states:
            job = state.status.id
            if job in self._done:
                continue
            over = settled(state)
            if job in self._now:
                if over:
                    self._now[job].set()
                continue
            if not (look or over) or len(self._now) >= AT_ONCE:
                continue
            source = self._source(job, state.status.state != "PENDING", over)
            there = source is not None and any(map(os.path.exists, filter(None, (source.out, source.err))))
            if source is not None and there:
                ended = self._now[job] = threading.Event()
                if over:
                    ended.set()
                threading.Thread(target=self._read, args=(job, source, ended), daemon=True).start()
            elif over:
                self._done.add(job)
                self.without.append(job)

    def is_over(self, states: Sequence[RunState]) -> bool:
        """Whether all tasks have been read to their end."""
        return not self._now and self._pieces.empty() and all(state.status.id in self._done for state in states)

    def pieces(self, timeout: float) -> list[bytes | Notice]:
        """What has come meanwhile; waits a while for the first. Raises what reading raised."""
        found: list[bytes | Notice] = []
        try:
            job, piece = self._pieces.get(timeout=timeout)
            for _ in range(self._pieces.maxsize):
                if piece is None:
                    self._done.add(job)
                    del self._now[job]
                elif isinstance(piece, BaseException):
                    raise piece
                else:
                    found.append(piece)
                job, piece = self._pieces.get_nowait()
            self._pieces.put((job, piece))
        except queue.Empty:
            pass
        return found

    def _read(self, job: JobId, source: Source, ended: threading.Event) -> None:
        try:
            for piece in self._follow([source], stop=ended.is_set):  # type: ignore[attr-defined]
                self._pieces.put((job, piece))
        except BaseException as error:
            self._pieces.put((job, error))
        self._pieces.put((job, None))


def _without(place: Place | None, job: JobId) -> str:
    if place is None:
        return f"no log of job {job}: Slurm does not tell where it is"
    return f"no log of job {job}: {place.out} is not there"


def _line(states: Sequence[RunState]) -> str:
    """How jobs stand: one in full, the tasks of an array counted."""
    if len(states) == 1:
        return state_line(states[0])
    notes = next((state.note for state in states if state.note), "")
    counts = Counter(f"{state.status.state} {state.status.reason}".rstrip() for state in states)
    words = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    return f"job {states[0].status.id.raw}: {words}" + (f" ({notes})" if notes else "") if states else ""
