"""Follow jobs to their end, for ``logs -f``, ``submit --follow``, ``submit --wait`` and ``wait``.

Each log is read in its own thread: that of a run, that of an external job, those of an array's tasks side by side. At
most ``AT_ONCE`` are read at the same time, so that an array of a thousand tasks does not open two thousand files; the
others lose nothing, as their files are read later from the start.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from clusterrun.base.errors import ClusterrunError
from clusterrun.base.job import JobId, JobStatus, Outcome
from clusterrun.cli import logfiles
from clusterrun.cli.common.show import card_lines, exit_code
from clusterrun.cluster import Cluster
from clusterrun.logs.files import Source, clock_ticks
from clusterrun.logs.follow import Notice
from clusterrun.logs.locations import LogLocation
from clusterrun.logs.request import LogRequest, detect_format
from clusterrun.logs.show import LiveBars, live_lines, show_following
from clusterrun.records import launches
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends
from clusterrun.scheduler import Scheduler
from clusterrun.state.pace import WATCH_LONGEST
from clusterrun.state.reconcile import RunState, Target
from clusterrun.state.show import canceller, handle, progress_facts
from clusterrun.state.watch import WatchThread
from clusterrun.terminal.ui import Ui

LATE = 75.0
"""Seconds after the end of a job until its logs must be visible: a network file system caches a folder for a minute."""
PATIENCE = 3.0
"""Seconds that a job runs without a log before a note: it opens its files shortly after it starts."""
AT_ONCE = 32
"""Tasks that are read at the same time, each with two files."""
CHECK, CHECK_RUN = 1.0, 0.25
"""Seconds between two checks for external jobs' files that do not exist yet, and for files in the folder of a run."""
PROGRESS = 2.0
"""Seconds between two looks at the progress of a job."""
WORTH_A_CARD = 60.0
"""Seconds that a job runs at least, if its end is followed by its efficiency card."""
_MANY = 4  # the most tasks whose ends are printed one by one
_CAUSES = {"PREEMPTION": "after a preemption", "NODE FAILURE": "after a node failure"}

Piece = tuple[JobId, bytes | Notice | BaseException | None]
Follow = Callable[[Sequence[Source], Callable[[], bool]], Iterator[bytes | Notice]]


def follow_run(ui: Ui, cluster: Cluster, run: RunRecord) -> int:
    """Print a run's lines until it ends; return the exit code of its outcome."""
    assert run.job_id is not None
    request = LogRequest(display=detect_format(sys.stdout.isatty(), os.environ))
    source = launches.log_source(run, run.job_id)
    return follow(ui, cluster, FollowedRun(ui, logfiles.RunLogs(run, run.job_id), source, request), request)


def follow(ui: Ui, cluster: Cluster, logs: FollowedRun | FollowedJobs, request: LogRequest) -> int:
    """Print the lines of a job, or of the tasks of an array, until all end; return the exit code of the outcomes."""
    watch = cluster.watch([logs.target], follow=True)
    watcher, notes, progress = WatchThread(watch), StateNotes(ui, logs.job), ProgressLines(ui)
    reader = TaskReader(
        logs.source, lambda sources, stop: show_following(sources, request, stop=stop, bars=progress.bars)
    )
    try:
        while not (watcher.settled and reader.are_read(logs.jobs(watcher.states))):
            states = watcher.poll()
            if states and not watcher.settled:
                notes.update(states, logs.missing(states, reader), time.monotonic())
            logs.update(reader, watcher)
            for piece in reader.pieces(0.1):
                if isinstance(piece, Notice):
                    ui.note(piece.text)
                else:
                    ui.log_bytes(piece)
                    watch.on_output()
            progress.update(watcher.states, time.monotonic())
    except KeyboardInterrupt:
        ui.note(f"job {logs.job} was not cancelled; to cancel it, run `clusterrun cancel {logs.job}`")
        raise
    finally:
        ui.status_lines()
        watcher.close()
    states = watcher.states
    for line in logs.missing_lines(cluster, reader, states):
        ui.note(line)
    if len(states) <= _MANY:
        return report_end_of(ui, cluster, states)
    ui.note(_format_states(states))
    return exit_code(states)


class FollowedRun:
    """The logs of a run that is followed: its attempts, and when they are whole."""

    def __init__(self, ui: Ui, logs: logfiles.RunLogs, source: Source, request: LogRequest) -> None:
        """Print the attempt if it is not the first."""
        self._ui, self._logs, self._source = ui, logs, source
        self.job, self.target = logs.job, Target(logs.run.run_id, logs.run)
        self._paths = [path for path in (source.out, source.err) if path is not None]
        self._seen: set[Path] = set()
        self._over_at, self._checked = math.inf, -1.0
        attempts = format_attempts(logs.attempts)
        self._attempts_noted = len(attempts)
        if attempts:
            whole = "; showing the log from the beginning" if request.tail is None and request.since is None else ""
            ui.note(f"the job is on {attempts[-1]}{whole}")

    def source(self, job: JobId, begun: bool, over: bool) -> Source:
        return self._source

    def jobs(self, states: Sequence[RunState]) -> list[JobId]:
        """Return the jobs that are read."""
        return [self.job]

    def missing(self, states: Sequence[RunState], reader: TaskReader) -> Path | None:
        """Return the log that does not exist yet."""
        return self._paths[0] if not self._seen else None

    def update(self, reader: TaskReader, watcher: WatchThread) -> None:
        """Read the run's files, print new attempts, and end when it has ended and its logs are whole."""
        if self._checked < 0:
            reader.read(self.job, self._source)  # before the scheduler answers
        now = time.monotonic()
        if now - self._checked < CHECK_RUN:
            return
        self._checked = now
        self._seen.update(filter(Path.exists, set(self._paths) - self._seen))
        attempts = format_attempts(self._logs.attempts)
        for line in attempts[self._attempts_noted :]:
            self._ui.note(line)
        self._attempts_noted = max(self._attempts_noted, len(attempts))
        if watcher.settled and self._are_whole(watcher.states[0], now):  # a doubtful end may yet be none
            reader.read(self.job, over=True)

    def missing_lines(self, cluster: Cluster, reader: TaskReader, states: Sequence[RunState]) -> list[str]:
        """Return why logs do not exist."""
        gone = [path for path in self._paths if path in self._seen and not path.exists()]
        if gone:
            return [f"the log was removed: {gone[0]}; later lines are lost"]
        return [] if self._seen else [logfiles.format_missing_log(cluster, self._logs, states[0])]

    def _are_whole(self, state: RunState, now: float) -> bool:
        """Return whether the logs are as large as the log clock recorded, or the time to wait for that is over."""
        is_new = self._over_at == math.inf
        self._over_at = min(self._over_at, now)
        folders = self._logs.attempts
        over_for = max(now - self._over_at, time.time() - (state.status.ended or time.time()))
        if not folders or over_for >= LATE:
            return True
        ticks = clock_ticks(folders)
        least = ticks[-1][1:] if ticks else (0, 0)
        if all(map(self._is_whole, self._paths, least)) and (ticks or self._seen):
            return True
        if is_new:
            self._ui.note(f"job {self.job} has ended; waiting up to {LATE:.0f} s for its logs to appear")
        return False

    def _is_whole(self, path: Path, size: int) -> bool:
        try:
            return path.stat().st_size >= size
        except OSError:
            return path in self._seen


class FollowedJobs:
    """The logs of an external job, or of the tasks of an array, that are followed."""

    def __init__(self, scheduler: Scheduler, logs: logfiles.ExternalLogs, labels: frozenset[int] | None) -> None:
        self._logs, self._labels = logs, labels
        self.job, self.target = logs.job, Target(str(logs.job), None, logs.job)
        self._locator = LogLocator(logs, partial(logfiles.find_external_logs, logs.job, scheduler))

    def source(self, job: JobId, begun: bool, over: bool) -> Source | None:
        """Return the files of a task; None while Slurm may still complete their names. Raises RequestError."""
        location = self._locator.find(job, begun=begun, over=over)
        if location is None:
            return None
        for path in logfiles.files_of(location):
            logfiles.check_readable(path, job)
        return logfiles.external_source(location, self._labels, named=self._logs.is_array)

    def jobs(self, states: Sequence[RunState]) -> list[JobId]:
        return [state.status.id for state in states]

    def missing(self, states: Sequence[RunState], reader: TaskReader) -> Path | None:
        """Return the log that does not exist yet; None for an array: usually some of its tasks have files."""
        if len(states) != 1 or reader.has_begun:
            return None
        job = states[0].status
        location = self._locator.find(job.id, begun=job.state != "PENDING", over=False)
        return location.out if location is not None else None

    def update(self, reader: TaskReader, watcher: WatchThread) -> None:
        reader.update(watcher.states, watcher.watch.is_settled)

    def missing_lines(self, cluster: Cluster, reader: TaskReader, states: Sequence[RunState]) -> list[str]:
        lines = []
        for job in reader.without_log:
            location = self._locator.find(job, begun=True, over=True)
            why = "Slurm does not report the path of the log" if location is None else f"{location.out} does not exist"
            lines.append(f"no log for job {job}: {why}")
        return lines


class LogLocator:
    """Finds the log files of external tasks. Queries Slurm again when they run, every ``WATCH_LONGEST`` s at most.

    A node name in a file name (%N) is known only then. A file that exists shows that its task runs, before the queue,
    which is queried rarely, shows it.
    """

    def __init__(
        self,
        logs: logfiles.ExternalLogs,
        query: Callable[[], logfiles.ExternalLogs],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logs, self._query, self._now = logs, query, now
        self._queried = self._answered = -math.inf
        self._begun: dict[JobId, float] = {}  # when a task with incomplete file names was first known to run

    def find(self, job: JobId, *, begun: bool, over: bool) -> LogLocation | None:
        """Return the files of a task; None while Slurm may still complete their names."""
        location = self._logs.find(job)
        if _is_whole(location):
            return location
        if not (begun or over or _has_file(location)):
            return None
        since = self._begun.setdefault(job, self._now())
        if self._answered < since:
            self._query_again(CHECK if over else WATCH_LONGEST)
        location = self._logs.find(job)
        return location if over or _is_whole(location) or self._answered >= since else None

    def _query_again(self, wait: float) -> None:
        """Query Slurm if the last query was ``wait`` seconds ago."""
        if self._now() - self._queried >= wait:
            self._queried = self._now()
            with contextlib.suppress(ClusterrunError):  # Slurm forgot the job or did not respond: keep what is known
                self._logs, self._answered = self._query(), self._queried


def _is_whole(location: LogLocation | None) -> bool:
    return location is not None and location.is_whole


def _has_file(location: LogLocation | None) -> bool:
    return location is not None and any(map(os.path.exists, logfiles.files_of(location)))


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
                self.read(job, over=over)
            elif (check or over) and len(self._active) < AT_ONCE:
                self._begin(job, self._source(job, state.status.state != "PENDING", over), over=over)

    def _begin(self, job: JobId, source: Source | None, *, over: bool) -> None:
        """Start to read a task if one of its files exists; without one, nothing is read of a task that is over."""
        if source is not None and any(path.exists() for _, path in source.files("both")):
            self.read(job, source, over=over)
        elif over:
            self._done.add(job)
            self.without_log.append(job)

    def read(self, job: JobId, source: Source | None = None, *, over: bool = False) -> None:
        """Start to read a task's files if ``source`` is given; a task that is ``over`` is read up to their end."""
        if source is not None:
            ended = self._active[job] = threading.Event()
            threading.Thread(target=self._read, args=(job, source, ended), daemon=True).start()
        if over and job in self._active:
            self._active[job].set()

    def are_read(self, jobs: Iterable[JobId]) -> bool:
        """Return whether these tasks have been read to their end."""
        return not self._active and self._pieces.empty() and self._done.issuperset(jobs)

    def pieces(self, timeout: float) -> Iterator[bytes | Notice]:
        """Yield new pieces of output; wait up to ``timeout`` seconds for the first. Raises errors of the threads."""
        with contextlib.suppress(queue.Empty):
            for number in range(self._pieces.maxsize):
                job, piece = self._pieces.get(block=not number, timeout=timeout)
                if isinstance(piece, BaseException):
                    raise piece
                if piece is not None:
                    yield piece
                    continue
                self._done.add(job)
                del self._active[job]

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
    note = next(filter(None, (state.note for state in states)), "")
    counts = Counter(f"{state.status.state} {state.status.reason}".rstrip() for state in states)
    counted = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    return f"job {states[0].status.id.raw}: {counted}" + (f" ({note})" if note else "") if states else ""


def format_state(state: RunState) -> str:
    """Return the state of a job in one line, with an explanation of its reason."""
    job = state.status
    if state.note:
        return f"job {job.id}: {state.note}"
    from clusterrun.scheduler.slurm import reasons  # late import: only a pending job needs this large table

    known = reasons.find_reason(job.reason) if job.reason else None
    return f"job {job.id}: {job.state} {job.reason}".rstrip() + (f": {known.meaning}" if known is not None else "")


def format_attempts(folders: Sequence[Path]) -> list[str]:
    """Return a line for each attempt after the first, by the folders of the attempts, oldest first."""
    lines = []
    for before, folder in pairwise(folders):
        restart, launch = folder.name.split(".")[-2:]
        if launch != "0":
            lines.append(f"attempt {restart}, launch {launch}")
            continue
        ended = ends.load_job_end(before) or ends.JobEnd()
        parts = "requeued", _CAUSES.get(ended.due, ""), _format_clock(ended.time)
        lines.append(f"attempt {restart} ({' '.join(filter(None, parts))})")
    return lines


class StateNotes:
    """Notes about a followed job: each change of its state, and once that it runs and has no log."""

    def __init__(self, ui: Ui, job: JobId) -> None:
        self._ui, self._job = ui, job
        self._line = ""
        self._since = math.inf
        self._noted = False

    def update(self, states: Sequence[RunState], missing: Path | None, now: float) -> None:
        """``missing`` is a log that does not exist, None if there is none; ``now`` in seconds of any clock."""
        line, are_running = _format_states(states), all(state.status.state == "RUNNING" for state in states)
        if line != self._line and not are_running:
            self._ui.note(line)
        self._line = line
        if missing is None or not are_running:
            self._since = math.inf
            return
        self._since = min(self._since, now)
        if not self._noted and now - self._since >= PATIENCE:
            self._noted = True
            self._ui.note(f"job {self._job} is RUNNING, but its log {missing} does not exist yet; waiting")


class ProgressLines:
    """The lines below the log on a terminal: the bars that ranks draw, and how far one job is and how long it takes."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self.bars: LiveBars | None = {} if ui.can_redraw else None
        self._text, self._due, self._has_warned = "", 0.0, False

    def update(self, states: Sequence[RunState], now: float) -> None:
        """Show the lines again below new output; the text is made again every PROGRESS seconds of ``now``."""
        if self.bars is None:
            return
        if len(states) == 1 and now >= self._due:
            self._due = now + PROGRESS
            self._read(states[0])
        self._ui.status_lines(*live_lines(self.bars), *filter(None, [self._text]))

    def _read(self, state: RunState) -> None:
        facts = progress_facts(state, state.figures)
        self._text = facts["training"]
        if facts["limit"] and not self._has_warned:
            self._has_warned = True
            self._ui.note(facts["limit"])


def _format_clock(seconds: float | None) -> str:
    return time.strftime("at %H:%M:%S", time.localtime(seconds)) if seconds is not None and 0 <= seconds < 2**40 else ""


def report_end(ui: Ui, states: Sequence[RunState]) -> int:
    """Print how each run ended, with the first cause if its files show one; return the exit code."""
    from clusterrun.why import ended as diagnose  # late import: most commands do not need it

    for state in states:
        job = state.status
        is_plain = job.outcome is Outcome.DONE or job.outcome.value == job.state.lower()
        line = f"job {handle(state)}: {job.state}" + ("" if is_plain else f" ({job.outcome.value})")
        named = canceller(state.record, job)  # the next line names who cancelled it
        ui.note(line + (f": {job.reason}" if job.reason and not named else ""))
        first = diagnose.in_one_line(state)
        if first:
            ui.note(first)
    return exit_code(states)


def report_end_of(ui: Ui, cluster: Cluster, states: Sequence[RunState]) -> int:
    """Print what `report_end` does, and on a terminal the efficiency card of one job; return the exit code."""
    code = report_end(ui, states)
    if len(states) == 1 and ui.on_terminal and _is_worth_a_card(states[0].status):
        for line in card_lines(cluster, states[0]):
            ui.note(line)
    return code


def _is_worth_a_card(job: JobStatus) -> bool:
    return job.outcome is Outcome.DONE and (job.elapsed or 0) >= WORTH_A_CARD
