"""Threads that keep the newest answer: of the scheduler, of a run's files, of its log.

Each holds one value that is replaced whole, so that the screen reads it without waiting. They are daemons: a question
that hangs holds its own thread, never the screen or the way out of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clusterrun.errors import ClusterrunError
from clusterrun.job import LOCAL, Outcome
from clusterrun.logs import LogLine, LogRequest, Source, Timing, follow_lines
from clusterrun.logs.display import format_line
from clusterrun.state.pace import Pace
from clusterrun.state.reconcile import RunState
from clusterrun.terminal.safe_text import safe_text
from clusterrun.top.source import Ranks, key_of

LOCAL_WAIT = 2.0  # jobs on this machine are asked for by reading files
FILES_WAIT = 1.5
_LOOK = 0.1  # how soon a new answer is made rows of
LOG_LINES = 2000  # kept, and the most that is read in a second before we skip to the end
SHOWN_FIRST = 200


@dataclass(frozen=True, slots=True)
class Jobs:
    """The last known jobs; ``at`` is when the scheduler last answered (None: not yet), ``trouble`` why not since.

    Times are monotonic seconds.
    """

    states: tuple[RunState, ...] = ()
    at: float | None = None
    asking_since: float | None = None
    trouble: str = ""


class QueueFeed:
    """Asks ``ask`` for the jobs again and again, as often as its pace allows.

    ``heard_ago`` tells by how many seconds an answer is older than its question: another window had asked.
    """

    def __init__(
        self, ask: Callable[[], Sequence[RunState]], pace: Pace | None = None,
        now: Callable[[], float] = time.monotonic, *, heard_ago: Callable[[], float] = lambda: 0.0,
    ) -> None:  # fmt: skip
        self.latest = Jobs()
        self._ask, self._pace, self._now, self._heard_ago = ask, pace or Pace(), now, heard_ago
        self._changed = threading.Condition()
        self._asked, self._due = -1e9, -1e9
        self._told: set[str] = set()  # the jobs that the scheduler has told of since we are here
        self._closed = False

    def start(self) -> None:
        """Ask now and from now on."""
        threading.Thread(target=self._run, name="top-queue", daemon=True).start()

    def hurry(self) -> None:
        """Ask as soon as the pace's floor allows: something has just happened."""
        with self._changed:
            self._due = min(self._due, self._asked + self._pace.floor)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def look(self) -> None:
        """Ask once, and decide when to ask again."""
        began, before = self._now(), self.latest
        self._asked = began
        self.latest = replace(before, asking_since=began)
        try:
            found, trouble = tuple(self._ask()), ""
        except ClusterrunError as error:
            found, trouble = (), f"{error.message}{': ' + error.said if error.said else ''}"
        except Exception as error:  # the thread must live, and the screen must say why nothing moves
            found, trouble = (), f"{type(error).__name__}: {error}"
        now = self._now()
        trouble = trouble or self._silence(found)
        found = _kept(before.states, found)
        if trouble:
            seen = [s.as_of for s in found if s.as_of is not None]  # what others had been told, before we were here
            at = before.at if before.at is not None or not seen else now - (time.time() - min(seen))
            self.latest = Jobs(found or before.states, at, None, trouble)
        else:
            self.latest = Jobs(found, now - self._heard_ago(), None, "")
        changed = [s.told for s in before.states] != [s.told for s in self.latest.states]
        wait = self._pace.after(changed=changed, failed=bool(trouble), took=now - began)
        local = bool(found) and all(s.record is not None and s.record.scheduler == LOCAL for s in found)
        with self._changed:
            wait = min(LOCAL_WAIT, self._pace.floor) if local and not trouble else wait - self._heard_ago()
            self._due = now + wait

    def _silence(self, found: Sequence[RunState]) -> str:
        """Why the scheduler is not heard: no live job was told of, or one that was before. Empty where it is.

        A run of another cluster carries a note for good: nobody here can ask about it.
        """
        noted = [s for s in found if s.note]
        self._told |= {key_of(s) for s in found if not s.note}
        live = [s for s in found if s.note or s.status.outcome is Outcome.RUNNING]
        lost = [s for s in noted if key_of(s) in self._told] or (noted if len(noted) == len(live) else [])
        return lost[0].note if lost else ""

    def _run(self) -> None:
        while not self._closed:
            self.look()
            with self._changed:
                while not self._closed and self._now() < self._due:
                    self._changed.wait(self._due - self._now())


@dataclass(frozen=True, slots=True)
class Rows:
    """The jobs as rows of the table, by key, made of these answers."""

    jobs: Jobs = Jobs()
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict)


class RowsFeed:
    """Makes the rows of the table: their figures stand in files, which may be slow to come."""

    def __init__(self, queue: QueueFeed, make: Callable[[Jobs, float], Mapping[str, Sequence[str]]]) -> None:
        self.latest = Rows()
        self._queue, self._make = queue, make
        self._closed = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="top-rows", daemon=True).start()

    def close(self) -> None:
        self._closed = True

    def _run(self) -> None:
        due = 0.0
        while not self._closed:
            jobs, began = self._queue.latest, time.monotonic()
            if began >= due or jobs.states is not self.latest.jobs.states:
                with contextlib.suppress(Exception):
                    self.latest = Rows(jobs, self._make(jobs, began))
                now = time.monotonic()
                due = now + max(1.0, 10 * (now - began))
            time.sleep(_LOOK)


class RanksFeed:
    """Reads the chosen job's files every second or two; a folder that is slow to read is read less often.

    ``latest`` is the job's key, and what its files told.
    """

    def __init__(self, wait: float = FILES_WAIT) -> None:
        self.latest: tuple[str, Ranks] = ("", Ranks())
        self._wait = wait
        self._chosen: tuple[str, Callable[[], Ranks]] | None = None
        self._changed = threading.Condition()
        self._closed = False

    def start(self) -> None:
        threading.Thread(target=self._loop, name="top-ranks", daemon=True).start()

    def choose(self, key: str, read: Callable[[], Ranks] | None) -> None:
        """Read this job's files from now on, by ``read``; at once where it is another job than before."""
        with self._changed:
            other = (self._chosen[0] if self._chosen else None) != (key if read else None)
            self._chosen = (key, read) if read else None
            if other:
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _loop(self) -> None:
        while not self._closed:
            chosen, began = self._chosen, time.monotonic()
            if chosen is not None:
                with contextlib.suppress(Exception):  # another program's files: what was last read stays, with its age
                    self.latest = (chosen[0], chosen[1]())
            took = time.monotonic() - began
            with self._changed:
                same = (self._chosen and self._chosen[0]) == (chosen and chosen[0])
                if same and not self._closed:
                    self._changed.wait(None if chosen is None else max(self._wait, 10 * took))


class _Closed(Exception):
    """Nobody looks at this log any more."""


@dataclass
class LogFeed:
    """The last lines of one job's log, as they come; ``count`` is how many have come in all."""

    source: Source
    count: int = 0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    trouble: str = ""
    _closed: bool = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="top-log", daemon=True).start()

    def close(self) -> None:
        self._closed = True

    def new(self, since: int) -> tuple[int, list[str]]:
        """How many lines have come in all, and the kept ones after the first ``since``."""
        count, lines = self.count, list(self.lines)
        return count, lines[-(count - since) :] if count > since else []

    def _run(self) -> None:
        try:
            while not self._closed:
                self._follow()
        except _Closed:
            pass
        except (ClusterrunError, OSError) as error:
            self.trouble = str(error)
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"

    def _follow(self) -> None:
        """Show lines until they come faster than anybody could read: then begin again at the end."""
        self._began, self._in_a_second = time.monotonic(), 0
        width = len(str(max(0, (self.source.world_size or 1) - 1)))
        request, timing = LogRequest(tail=SHOWN_FIRST), Timing(sleep=self._sleep)
        lines = follow_lines(self.source, request, stop=lambda: False, timing=timing)
        for line in lines:
            if self._closed:
                raise _Closed
            self._add(log_text(line, width))
            self._in_a_second += 1
            if self._in_a_second > LOG_LINES:
                self._sleep(1.0)
                self._add("… the log grows faster than it can be read here: lines left out …")
                return

    def _add(self, text: str) -> None:
        self.lines.append(text)
        self.count += 1

    def _sleep(self, seconds: float) -> None:
        if self._closed:
            raise _Closed
        time.sleep(seconds)
        if time.monotonic() - self._began > 1:
            self._began, self._in_a_second = time.monotonic(), 0


def log_text(line: LogLine, width: int) -> str:
    """A line of a log as `logs` shows it, or a note of ours on it, made safe."""
    return f"-- {safe_text(line.text)}" if line.notice else format_line(line, width)


def _kept(before: Sequence[RunState], found: Sequence[RunState]) -> tuple[RunState, ...]:
    """The new states; where the scheduler did not answer for a job, what it last told of it."""
    known = {key_of(s): s for s in before if not s.note}
    return tuple(known.get(key_of(s), s) if s.note else s for s in found)
