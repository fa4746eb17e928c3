"""When to query the scheduler again: rarely while nothing happens, more rarely while it does not respond."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

FLOOR = 10.0
"""The least number of seconds between two queries of a live view."""
LONGEST = 120.0
LONGEST_SILENCE = 300.0
SLOW = 5.0  # an answer that took longer doubles the wait: the controller is busy
_GROWTH = 1.5
_PATIENT = 3  # failures in a row before the wait grows
#: Seconds between two queries while a command waits for jobs or follows them: the first wait, and the longest.
WATCH_FIRST, WATCH_LONGEST = 3.0, 30.0
QUIET = 3.0
"""Seconds after the last line of a log during which the job counts as alive without a query."""


class Pace:
    """The wait after each query of a live view: ``floor`` after a change, then half as long again each time."""

    def __init__(self, floor: float = FLOOR, *, seed: int | None = None) -> None:
        self.floor = floor
        self._wait = floor
        self._failures = 0
        self._random = random.Random(seed)

    def after(self, *, changed: bool, failed: bool, took: float) -> float:
        """Return the seconds to wait after an answer that took ``took`` seconds, or a failed query."""
        if failed:
            self._failures += 1
            over = self._failures - _PATIENT
            wait = self.floor if over < 0 else min(self.floor * 2.0 ** (over + 1), LONGEST_SILENCE)
        else:
            self._failures = 0
            self._wait = self.floor if changed else min(self._wait * _GROWTH, LONGEST)
            wait = self._wait * 2 if took > SLOW else self._wait
        return max(self.floor, wait * self._random.uniform(0.8, 1.2))


class QueryTimer:
    """When a watch queries the scheduler: the first time at once, then after ``wait`` seconds, growing by half.

    While lines of output arrive the job is alive, and no query is due.
    """

    def __init__(self, wait: float = WATCH_FIRST, now: Callable[[], float] = time.monotonic) -> None:
        self.wait, self._now = wait, now
        self._due = now()
        self._output_at = -QUIET

    def is_due(self, *, despite_output: bool = False) -> bool:
        """Return whether it is time for a query."""
        is_quiet = despite_output or self._now() - self._output_at >= QUIET
        return is_quiet and self._now() >= self._due

    def restart(self, wait: float, *, delay: float = 0.0) -> None:
        """Make the next query due after ``delay`` seconds, and the one after it ``wait`` seconds later."""
        self._due, self.wait = self._now() + delay, wait

    def on_query(self, age: float = 0.0) -> None:
        """Schedule the next query after one whose answer is ``age`` seconds old."""
        self._due = self._now() - age + self.wait * random.uniform(0.8, 1.2)
        self.wait = min(self.wait * _GROWTH, WATCH_LONGEST)

    def on_output(self) -> None:
        """Note that a line of output has arrived."""
        self._output_at = self._now()
