"""A scheduler for a command that goes on: how often it is asked.

Accounting, which is slow and shared by all, is asked once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from clusterrun.job import JobId
from clusterrun.scheduler import Answer, Scheduler

#: Seconds between two questions to accounting.
PAUSE = 60.0
#: Seconds between two questions to the scheduler while jobs are waited for: at first, and after growing by half a time.
FIRST, LONGEST = 3.0, 30.0


class Sparing:
    """Another scheduler, but for its ``account``: within the minute the last answer stands."""

    def __init__(self, scheduler: Scheduler, now: Callable[[], float] = time.monotonic) -> None:
        self._scheduler, self._now = scheduler, now
        self._at, self._ids, self._past = -PAUSE, frozenset[JobId](), Answer()

    def account(self, ids: Sequence[JobId], since: int) -> Answer:
        """As of the last minute; not complete where other ids were asked for then."""
        if self._now() - self._at >= PAUSE:
            self._at, self._ids = self._now(), frozenset(ids)
            self._past = self._scheduler.account(ids, since)
        elif not self._ids.issuperset(ids):
            return Answer(self._past.jobs, complete=False, note="accounting is asked once a minute")
        return self._past

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)
