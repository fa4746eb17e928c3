"""Progress bars: of the thousands of states that a bar is drawn in, the last one, and some on the way.

A bar is drawn by writing ``\\r`` and its new state, without a newline. srun sends such a line when it ends, in pieces
of 1024 bytes; ``srun --unbuffered`` passes each write on and labels it as a line of its own, so a bar of 10,000 updates
is 10,000 lines in the file (both seen on 22.05). So a state is held until its task says something else: a next state
takes its place, but for the first of another bar, which is known by a count that fell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, TypeVar

EVERY = 10.0
"""Seconds between the states of one task's bar that a follower is shown."""
SETTLED = 1.0
"""Seconds without a new state after which the last one is shown."""
BARS_CAP = 4 * 1024 * 1024
"""Characters kept of all states in hand."""
BLANK = " \t\r"
"""What wipes a line, or is not seen at its end."""
_FIRST = 400  # bytes of a bar's first state that are kept
_COUNTS = tuple(re.compile(pattern) for pattern in (r"(\d{1,15})%", r"(\d{1,15})it\b", r"(\d{1,15})/\d", r"(\d{1,15})"))
_COUNTED_IN = 400  # characters of a state in which its count is looked for

T = TypeVar("T")


@dataclass
class _State(Generic[T]):
    text: str
    line: T
    seen: float | None = None  # when late() first saw it
    given: bool = False


class Bars(Generic[T]):
    """The bar that each task is drawing; what is given out is the line that came with a state."""

    def __init__(self) -> None:
        self._states: dict[int | None, _State[T]] = {}  # oldest first
        self._size = 0
        self._given_at: dict[int | None, float] = {}

    def __bool__(self) -> bool:
        return bool(self._states)

    def __contains__(self, task: int | None) -> bool:
        return task in self._states

    def lines(self) -> list[T]:
        """The last states in hand, given or not."""
        return [state.line for state in self._states.values()]

    def draw(self, task: int | None, first: str, text: str, line: T) -> list[T]:
        """Take a new state, ``first`` of those that came with it; returns the last one of a bar that is over."""
        before = self._states.get(task)
        if before is not None and not text:
            return []  # a bar that wipes itself leaves what it showed
        over = self._take(task) if before is None or _fell(before.text, first) else []
        if task in self._states:
            self._drop(task)
        self._states[task] = _State(text, line)
        self._size += len(text)
        while self._size > BARS_CAP or len(self._states) > 65_536:
            over += self._take(next(iter(self._states)))
        return over

    def finish(self, task: int | None) -> list[T]:
        """The last state of this task's bar, where it was not given yet: another line of the task has come."""
        return self._take(task) if self._states else []

    def end(self) -> list[T]:
        """All last states in hand."""
        return [line for task in list(self._states) for line in self._take(task)]

    def late(self, now: float) -> list[T]:
        """The states to show now: a bar's first, one every EVERY seconds, and where it stands still."""
        lines = []
        for task, state in self._states.items():
            if state.given:
                continue
            if state.seen is None:
                state.seen = now
            given_at = self._given_at.get(task)
            if given_at is None or now - given_at >= EVERY or now - state.seen >= SETTLED:
                state.given = True
                if len(self._given_at) > 65_536:
                    self._given_at.clear()
                self._given_at[task] = now
                lines.append(state.line)
        return lines

    def _take(self, task: int | None) -> list[T]:
        state = self._states.get(task)
        if state is None:
            return []
        self._drop(task)
        return [] if state.given else [state.line]

    def _drop(self, task: int | None) -> None:
        self._size -= len(self._states.pop(task).text)


def last_state(text: str) -> str:
    """The last state of a progress line that shows anything, without the blanks that wipe it."""
    shown = text.rstrip(BLANK)
    return shown[shown.rfind("\r") + 1 :]


def first_state(payload: bytes) -> bytes:
    """The first state that a line draws which begins with a carriage return, as far as it tells a count."""
    return payload[:_FIRST].lstrip(b"\r").partition(b"\r")[0] if payload[:1] == b"\r" else b""


def count(state: str) -> int | None:
    """How far a bar has come: its percentage, else steps, else the first number; None where it tells none."""
    for pattern in _COUNTS:
        found = pattern.search(state, 0, _COUNTED_IN)
        if found is not None:
            return int(found[1])
    return None


def _fell(before: str, now: str) -> bool:
    was, is_now = count(before), count(now)
    return was is not None and is_now is not None and is_now < was
