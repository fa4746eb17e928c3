"""Progress bars: keep the last of the thousands of states of a bar, and some on the way.

A program draws a bar by writing ``\\r`` (or a backspace for each character) and the new state, without a newline. srun
sends such a line when it ends, in pieces of 1024 bytes; ``srun --unbuffered`` passes each write on with its own label,
so a bar of 10,000 updates is 10,000 lines in the file (both seen on 22.05). So a state is held until its task writes
another line. The next state replaces it, except the first one of a new bar, which shows as a smaller count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, TypeVar

EVERY = 10.0
"""Seconds between the shown states of one task's bar while a log is followed."""
SETTLED = 1.0
"""Seconds without a new state after which the last one is shown."""
BARS_CAP = 4 * 1024 * 1024
"""Characters kept of all held states."""
BLANK = " \t\r"
"""Characters that wipe a line, or are invisible at its end."""
_BACK = re.compile(rb"(?<=\r)\x08+|\x08{4,}")
_FIRST = 400  # bytes of a bar's first state that are kept
_COUNTS = tuple(re.compile(pattern) for pattern in (r"(\d{1,15})%", r"(\d{1,15})it\b", r"(\d{1,15})/\d", r"(\d{1,15})"))
_COUNTED_IN = 400  # characters of a state that are searched for its count

T = TypeVar("T")


@dataclass
class _State(Generic[T]):
    text: str
    line: T
    seen: float | None = None  # when late() first saw it
    shown: bool = False


class Bars(Generic[T]):
    """The bar that each task draws; returns the line that came with a state."""

    def __init__(self) -> None:
        self._states: dict[int | None, _State[T]] = {}  # oldest first
        self._size = 0
        self._shown_at: dict[int | None, float] = {}

    def __bool__(self) -> bool:
        return bool(self._states)

    def __contains__(self, task: int | None) -> bool:
        return task in self._states

    def lines(self) -> list[T]:
        """Return the lines of the held states, shown or not."""
        return [state.line for state in self._states.values()]

    def draw(self, task: int | None, first: str, text: str, line: T) -> list[T]:
        """Take a new state and the ``first`` one of its line; return the last state of a bar that this one ends."""
        before = self._states.get(task)
        if before is not None and not text:
            return []  # a bar that wipes itself keeps its last state
        ended = self._take(task) if before is None or _fell(before.text, first) else []
        if task in self._states:
            self._drop(task)
        self._states[task] = _State(text, line)
        self._size += len(text)
        while self._size > BARS_CAP or len(self._states) > 65_536:
            ended += self._take(next(iter(self._states)))
        return ended

    def finish(self, task: int | None) -> list[T]:
        """Return the last state of this task's bar if it was not shown: the task wrote another line."""
        return self._take(task) if self._states else []

    def end(self) -> list[T]:
        """Return all held states that were not shown."""
        return [line for task in list(self._states) for line in self._take(task)]

    def late(self, now: float) -> list[T]:
        """Return the states to show now: the first of a bar, one every EVERY seconds, and one without a successor."""
        lines = []
        for task, state in self._states.items():
            if state.shown:
                continue
            if state.seen is None:
                state.seen = now
            shown_at = self._shown_at.get(task)
            if shown_at is None or now - shown_at >= EVERY or now - state.seen >= SETTLED:
                state.shown = True
                if len(self._shown_at) > 65_536:
                    self._shown_at.clear()
                self._shown_at[task] = now
                lines.append(state.line)
        return lines

    def _take(self, task: int | None) -> list[T]:
        state = self._states.get(task)
        if state is None:
            return []
        self._drop(task)
        return [] if state.shown else [state.line]

    def _drop(self, task: int | None) -> None:
        self._size -= len(self._states.pop(task).text)


def as_returns(data: bytes) -> bytes:
    """Return bytes of the same length with carriage returns for backspaces that go back to the start of a bar.

    Keras and others go back so, by as many backspaces as the bar is long. Fewer than four are an underlined letter, or
    a wheel that turns, unless they are the rest of a run that was cut.
    """
    return _BACK.sub(lambda run: b"\r" * len(run[0]), data) if b"\b" in data else data


def last_state(text: str) -> str:
    """Return the last visible state of a progress line, without the blanks that wipe it."""
    shown = text.rstrip(BLANK)
    return shown[shown.rfind("\r") + 1 :]


def first_state(payload: bytes) -> bytes:
    """Return the first state of a line that begins with a carriage return, enough of it for its count."""
    return payload[:_FIRST].lstrip(b"\r").partition(b"\r")[0] if payload[:1] == b"\r" else b""


def count(state: str) -> int | None:
    """Return the progress of a bar: its percentage, else its steps, else its first number, else None."""
    for pattern in _COUNTS:
        found = pattern.search(state, 0, _COUNTED_IN)
        if found is not None:
            return int(found[1])
    return None


def _fell(before: str, now: str) -> bool:
    was, is_now = count(before), count(now)
    return was is not None and is_now is not None and is_now < was
