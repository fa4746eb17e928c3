"""When to ask the scheduler again: rarely while nothing happens, rarer while it does not answer."""

from __future__ import annotations

import random

FLOOR = 10.0
"""Seconds between two questions at least, whoever is in a hurry."""
LONGEST = 120.0
LONGEST_SILENCE = 300.0
SLOW = 5.0  # an answer that took longer doubles the wait: the controller is busy
_PATIENT = 3  # failures in a row before the wait grows for them


class Pace:
    """Seconds to wait after each question: ten after a change, half as long again each time nothing changed."""

    def __init__(self, floor: float = FLOOR, *, seed: int | None = None) -> None:
        self.floor = floor
        self._wait = floor
        self._failures = 0
        self._random = random.Random(seed)

    def after(self, *, changed: bool, failed: bool, took: float) -> float:
        """The wait after an answer that ``took`` seconds, or did not come."""
        if failed:
            self._failures += 1
            over = self._failures - _PATIENT
            wait = self.floor if over < 0 else min(self.floor * 2.0 ** (over + 1), LONGEST_SILENCE)
        else:
            self._failures = 0
            self._wait = self.floor if changed else min(self._wait * 1.5, LONGEST)
            wait = self._wait * 2 if took > SLOW else self._wait
        return max(self.floor, wait * self._random.uniform(0.8, 1.2))
