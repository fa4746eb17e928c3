"""Threads that keep the newest answer of the scheduler, of a run's files, and of its log.

Each holds one value that is replaced as a whole, so that the screen reads it without waiting. They are daemons: a query
that hangs blocks its own thread, never the screen or its exit.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from clusterrun.base.errors import ClusterrunError
from clusterrun.base.job import LOCAL, Outcome
from clusterrun.logs.files import Source
from clusterrun.logs.follow import Notice, Timing
from clusterrun.logs.request import LogRequest, detect_format
from clusterrun.logs.show import LiveBars, show_following
from clusterrun.state.pace import Pace
from clusterrun.state.reconcile import Listing, RunState
from clusterrun.terminal.safe_text import safe_text
from clusterrun.top.source import Ranks, key_of

LOCAL_WAIT = 2.0  # local jobs: their state is read from files
FILES_WAIT = 1.5
_LOOK = 0.1  # seconds between two checks for a new answer
LOG_LINES = 2000  # lines kept, and the most read in a second before the feed skips to the end
SHOWN_FIRST = 200


@dataclass(frozen=True, slots=True)
class Jobs:
    """The last known jobs; ``at`` is when the scheduler last answered (None: never), ``problem`` why it no longer does.

    Times are monotonic seconds.
    """

    states: tuple[RunState, ...] = ()
    at: float | None = None
    querying_since: float | None = None
    problem: str = ""


class Feed(ABC):
    """A thread that runs ``_run`` until it is closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name=f"top-{type(self).__name__}", daemon=True).start()

    def close(self) -> None:
        """Stop the thread; a query in progress is not waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @abstractmethod
    def _run(self) -> None:
        """Work until ``_closed`` is set."""


class QueueFeed(Feed):
    """Query the jobs with ``query``, as often as the pace allows."""

    def __init__(
        self, query: Callable[[], Listing], pace: Pace | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self.latest = Jobs()
        self._query, self._pace, self._now = query, pace or Pace(), now
        self._queried_at, self._due = -1e9, -1e9
        self._known: set[str] = set()  # the jobs that the scheduler has reported since the start

    def query_soon(self) -> None:
        """Query as soon as the pace allows: something has just happened."""
        with self._changed:
            self._due = min(self._due, self._queried_at + self._pace.floor)
            self._changed.notify_all()

    def poll(self) -> None:
        """Query once, and decide when to query again."""
        began, before = self._now(), self.latest
        self._queried_at = began
        self.latest = replace(before, querying_since=began)
        listing, problem = self._ask()
        now, found = self._now(), tuple(listing.states)
        problem = problem or self._silence(found)
        found = _kept(before.states, found)
        if problem:
            at = before.at if before.at is not None else _answered(found, now)
            self.latest = Jobs(found or before.states, at, None, problem)
        else:
            self.latest = Jobs(found, now - listing.age, None, "")
        changed = [s.change_key for s in before.states] != [s.change_key for s in self.latest.states]
        wait = self._pace.after(changed=changed, failed=bool(problem), took=now - began)
        with self._changed:
            wait = min(LOCAL_WAIT, self._pace.floor) if _are_local(found) and not problem else wait - listing.age
            self._due = now + wait

    def _ask(self) -> tuple[Listing, str]:
        """Return the scheduler's answer, and why there is none."""
        try:
            return self._query(), ""
        except ClusterrunError as error:
            return Listing(), f"{error.message}{': ' + error.detail if error.detail else ''}"
        except Exception as error:  # keep the thread alive, and show why nothing changes
            return Listing(), f"{type(error).__name__}: {error}"

    def _silence(self, found: Sequence[RunState]) -> str:
        """Return why the scheduler did not respond: for any job that is live, or for one it knew before; else "".

        A run of another cluster always has a note: it cannot be queried from here.
        """
        noted = [state for state in found if state.note]
        answered = [state for state in found if not state.note]
        self._known |= set(map(key_of, answered))
        for state in noted:
            if key_of(state) in self._known:
                return state.note
        is_any_live = any(state.status.outcome is Outcome.RUNNING for state in answered)
        return noted[0].note if noted and not is_any_live else ""

    def _run(self) -> None:
        while not self._closed:
            self.poll()
            with self._changed:
                while not self._closed and self._now() < self._due:
                    self._changed.wait(self._due - self._now())


Rows = tuple[Jobs, Mapping[str, Sequence[str]]]
"""Jobs, and the rows of the table that were made of them, by key."""


class RowsFeed(Feed):
    """Make the rows of the table: their metrics come from files, which may be slow to read."""

    def __init__(self, queue: QueueFeed, make: Callable[[Jobs, float], Mapping[str, Sequence[str]]]) -> None:
        super().__init__()
        self.latest: Rows = (Jobs(), {})
        self._queue, self._make = queue, make

    def _run(self) -> None:
        due = 0.0
        while not self._closed:
            jobs, began = self._queue.latest, time.monotonic()
            if began >= due or jobs.states is not self.latest[0].states:
                with contextlib.suppress(Exception):
                    self.latest = (jobs, self._make(jobs, began))
                now = time.monotonic()
                due = now + max(1.0, 10 * (now - began))
            time.sleep(_LOOK)


class RanksFeed(Feed):
    """Read the selected job's files every second or two; a slow folder is read less often.

    ``latest`` is the job's key and what its files contained.
    """

    def __init__(self, wait: float = FILES_WAIT) -> None:
        super().__init__()
        self.latest: tuple[str, Ranks] = ("", Ranks())
        self._wait = wait
        self._selected: tuple[str, Callable[[], Ranks]] | None = None

    def select(self, key: str, read: Callable[[], Ranks] | None) -> None:
        """Read this job's files with ``read`` from now on, at once if it is another job than before."""
        with self._changed:
            other = (self._selected[0] if self._selected else None) != (key if read else None)
            self._selected = (key, read) if read else None
            if other:
                self._changed.notify_all()

    def _run(self) -> None:
        while not self._closed:
            selected, began = self._selected, time.monotonic()
            if selected is not None:
                with contextlib.suppress(Exception):  # damaged files: the last values stay, with their age
                    self.latest = (selected[0], selected[1]())
            took = time.monotonic() - began
            with self._changed:
                same = (self._selected and self._selected[0]) == (selected and selected[0])
                if same and not self._closed:
                    self._changed.wait(None if selected is None else max(self._wait, 10 * took))


class _Closed(Exception):
    """The log is no longer shown."""


class LogFeed(Feed):
    """The last lines of one job's log as they arrive; ``count`` is the number of all lines so far."""

    def __init__(self, find: Callable[[], Source]) -> None:
        """``find`` returns the log, each time that it is read from its end."""
        super().__init__()
        self.count, self.problem = 0, ""
        self._find = find
        self.lines: deque[str] = deque(maxlen=LOG_LINES)
        self.bars: LiveBars = {}

    def new(self, since: int) -> tuple[int, list[str]]:
        """Return the number of all lines so far, and the kept ones after the first ``since``."""
        count, lines = self.count, list(self.lines)
        return count, lines[-(count - since) :] if count > since else []

    def _run(self) -> None:
        try:
            while not self._closed:
                self._follow()
        except _Closed:
            pass
        except Exception as error:
            known = isinstance(error, ClusterrunError | OSError)
            self.problem = str(error) if known else f"{type(error).__name__}: {error}"

    def _follow(self) -> None:
        """Add lines until they arrive faster than anyone can read; then start again at the end."""
        self._began, self._in_a_second = time.monotonic(), 0
        request = LogRequest(display=detect_format(True, os.environ), tail=SHOWN_FIRST)
        timing = Timing(sleep=self._sleep)
        for piece in show_following([self._find()], request, stop=lambda: False, timing=timing, bars=self.bars):
            text = f"-- {safe_text(piece.text)}\n" if isinstance(piece, Notice) else piece.decode()
            for line in text.split("\n")[:-1]:
                if self._closed:
                    raise _Closed
                self._add(line)
                self._in_a_second += 1
                if self._in_a_second > LOG_LINES:
                    self._sleep(1.0)
                    self._add("… lines skipped: the log is growing too fast to show …")
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


def _are_local(states: Sequence[RunState]) -> bool:
    return bool(states) and all(state.scheduler == LOCAL for state in states)


def _answered(states: Sequence[RunState], now: float) -> float | None:
    """Return when the oldest answer came that another process got, on the clock of ``now``; None if there is none."""
    times = [state.as_of for state in states if state.as_of is not None]
    return now - (time.time() - min(times)) if times else None


def _kept(before: Sequence[RunState], found: Sequence[RunState]) -> tuple[RunState, ...]:
    """Return the new states; for a job without an answer, its last known one."""
    known = {key_of(s): s for s in before if not s.note}
    return tuple(known.get(key_of(s), s) if s.note else s for s in found)
