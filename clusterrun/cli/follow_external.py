"""Follow external jobs, which another tool submitted: one job, or the tasks of an array side by side.

Each task is read in its own thread. At most ``AT_ONCE`` are read at the same time, so that an array of a thousand tasks
does not open two thousand files; the others lose nothing, as their files are read later from the start.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from clusterrun.base.errors import ClusterrunError
from clusterrun.base.job import JobId
from clusterrun.cli.follow import (
    MissingLogNote,
    exit_code,
    format_state,
    note_still_running,
    print_pieces,
    report_end,
)
from clusterrun.cli.logfiles import ExternalLogs, check_readable, external_source, files_of, find_external_logs
from clusterrun.logs.files import Source
from clusterrun.logs.follow import Notice
from clusterrun.logs.locations import LogLocation
from clusterrun.logs.request import LogRequest, RankFilter
from clusterrun.logs.show import show_following
from clusterrun.scheduler import Scheduler
from clusterrun.state.external_watch import ExternalWatch
from clusterrun.state.pace import WATCH_LONGEST
from clusterrun.state.reconcile import RunState
from clusterrun.state.watch import WatchThread
from clusterrun.terminal.ui import Ui

AT_ONCE = 32
"""Tasks that are read at the same time, each with two files."""
CHECK = 1.0
"""Seconds between two checks for files that do not exist yet."""
_MANY = 4  # the most tasks whose ends are printed one by one

Piece = tuple[JobId, bytes | Notice | BaseException | None]
Follow = Callable[[Sequence[Source], Callable[[], bool]], Iterator[bytes | Notice]]


class LogLocator:
    """Finds the log files of external tasks. Queries Slurm again when they run, every ``WATCH_LONGEST`` s at most.

    A node name in a file name (%N) is known only then. A file that exists shows that its task runs, before the queue,
    which is queried rarely, shows it.
    """

    def __init__(
        self, logs: ExternalLogs, query: Callable[[], ExternalLogs], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._logs, self._query, self._now = logs, query, now
        self._queried = self._answered = -math.inf
        self._begun: dict[JobId, float] = {}  # when a task with incomplete file names was first known to run

    def find(self, job: JobId, *, begun: bool, over: bool) -> LogLocation | None:
        """Return the files of a task; None while Slurm may still complete their names."""
        location = self._logs.find(job)
        if location is not None and location.is_whole:
            return location
        if not (begun or over or (location is not None and any(map(os.path.exists, files_of(location))))):
            return None
        since = self._begun.setdefault(job, self._now())
        if self._answered < since and self._now() - self._queried >= (CHECK if over else WATCH_LONGEST):
            self._queried = self._now()
            with contextlib.suppress(ClusterrunError):  # Slurm forgot the job or did not respond: keep what is known
                self._logs, self._answered = self._query(), self._queried
            location = self._logs.find(job)
        known = over or self._answered >= since or (location is not None and location.is_whole)
        return location if known else None


def follow_external(ui: Ui, scheduler: Scheduler, logs: ExternalLogs, ranks: RankFilter, request: LogRequest) -> int:
    """Print the lines of an external job, or of the tasks of an array, until all end; return the exit code."""
    watch = ExternalWatch([logs.job], scheduler, follow=True)
    watcher = WatchThread(watch)
    locator = LogLocator(logs, partial(find_external_logs, logs.job, scheduler))

    def source(job: JobId, begun: bool, over: bool) -> Source | None:
        location = locator.find(job, begun=begun, over=over)
        if location is None:
            return None
        for path in files_of(location):
            check_readable(path, job)
        return external_source(location, ranks, named=logs.is_array)

    tasks = TaskReader(source, lambda sources, stop: show_following(sources, request, stop=stop))
    state_line, missing_log = "", MissingLogNote(ui, logs.job)
    try:
        while True:
            states = watcher.poll()
            if len(states) == 1 and not watcher.settled:  # not for an array: usually some of its tasks have files
                job = states[0].status
                location = None if tasks.has_begun else locator.find(job.id, begun=job.state != "PENDING", over=False)
                missing_log.update(location.out if location else None, job.state, time.monotonic())
            line = _format_states(states)
            running = all(state.status.state == "RUNNING" for state in states)
            if line != state_line and not watcher.settled and not running:
                ui.note(line)
            state_line = line
            tasks.update(states, watch.is_settled)
            print_pieces(ui, tasks.pieces(0.1), watcher)
            if watcher.settled and tasks.are_read(states):
                break
    except KeyboardInterrupt:
        note_still_running(ui, logs.job)
        raise
    finally:
        watcher.close()
    states = list(watcher.states)
    for job_id in tasks.without_log:
        location = locator.find(job_id, begun=True, over=True)
        why = "Slurm does not report the path of the log" if location is None else f"{location.out} does not exist"
        ui.note(f"no log for job {job_id}: {why}")
    if len(states) <= _MANY:
        return report_end(ui, states)
    ui.note(_format_states(states))
    return exit_code(states)


class TaskReader:
    """Reads the logs of tasks in threads, and collects their pieces of output."""

    def __init__(self, source: Callable[[JobId, bool, bool], Source | None], follow: Follow) -> None:
        self._source, self._follow = source, follow
        self._pieces: queue.Queue[Piece] = queue.Queue(maxsize=256)  # a full queue stops the threads
        self._active: dict[JobId, threading.Event] = {}
        self._done: set[JobId] = set()
        self._checked = -CHECK
        self.without_log: list[JobId] = []

    @property
    def has_begun(self) -> bool:
        """Whether any task had a file."""
        return bool(self._active or self._done)

    def update(self, states: Sequence[RunState], settled: Callable[[RunState], bool]) -> None:
        """Start to read tasks whose files exist, up to the limit; record which have ended."""
        now = time.monotonic()
        check = now - self._checked >= CHECK  # each check looks for the files of all tasks
        self._checked = now if check else self._checked
        for state in states:
            job = state.status.id
            if job in self._done:
                continue
            over = settled(state)
            if job in self._active:
                if over:
                    self._active[job].set()
                continue
            if not (check or over) or len(self._active) >= AT_ONCE:
                continue
            source = self._source(job, state.status.state != "PENDING", over)
            if source is not None and any(map(os.path.exists, filter(None, (source.out, source.err)))):
                ended = self._active[job] = threading.Event()
                if over:
                    ended.set()
                threading.Thread(target=self._read, args=(job, source, ended), daemon=True).start()
            elif over:
                self._done.add(job)
                self.without_log.append(job)

    def are_read(self, states: Sequence[RunState]) -> bool:
        """Whether all tasks have been read to their end."""
        return not self._active and self._pieces.empty() and all(state.status.id in self._done for state in states)

    def pieces(self, timeout: float) -> list[bytes | Notice]:
        """Return new pieces of output; wait up to ``timeout`` seconds for the first. Raises errors of the threads."""
        found: list[bytes | Notice] = []
        try:
            job, piece = self._pieces.get(timeout=timeout)
            for _ in range(self._pieces.maxsize):
                if piece is None:
                    self._done.add(job)
                    del self._active[job]
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
            for piece in self._follow([source], ended.is_set):
                self._pieces.put((job, piece))
        except BaseException as error:
            self._pieces.put((job, error))
        self._pieces.put((job, None))


def _format_states(states: Sequence[RunState]) -> str:
    """Return the states of jobs in one line: of one job in full, of an array as counts."""
    if len(states) == 1:
        return format_state(states[0])
    note = next((state.note for state in states if state.note), "")
    counts = Counter(f"{state.status.state} {state.status.reason}".rstrip() for state in states)
    counted = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    return f"job {states[0].status.id.raw}: {counted}" + (f" ({note})" if note else "") if states else ""
