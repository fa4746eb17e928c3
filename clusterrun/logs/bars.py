"""Progress bars: keep the last of the thousands of states of a bar, and some on the way.

A program draws a bar by writing ``\\r`` (or a backspace for each character) and the new state, without a newline. srun
sends such a line when it ends, in pieces of 1024 bytes; ``srun --unbuffered`` passes each write on with its own label,
so a bar of 10,000 updates is 10,000 lines in the file (both seen on 22.05). So a state is held until its task writes
another line. The next state replaces it, except the first one of a new bar, which shows as a smaller count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterrun.logs.labels import LogLine

EVERY = 10.0
"""Seconds between the shown states of one task's bar while a log is followed."""
SETTLED = 1.0
"""Seconds without a new state after which the last one is shown."""
BARS_CAP = 4 * 1024 * 1024
"""Bytes kept of all held states."""
BLANK = b" \t\r"
"""Bytes that wipe a line, or are invisible at its end."""
_TASKS_CAP = 65_536
_BACK = re.compile(rb"(?<=\r)\x08+|\x08{4,}")
_FIRST = 400  # bytes of a bar's first state that are kept
_COUNTS = tuple(
    re.compile(pattern) for pattern in (rb"(\d{1,15})%", rb"(\d{1,15})it\b", rb"(\d{1,15})/\d", rb"(\d{1,15})")
)
_COUNTED_IN = 400  # bytes of a state that are searched for its count


@dataclass
class _State:
    line: LogLine
    seen: float | None = None  # when late() first saw it
    shown: bool = False


class Bars:
    """The newest state of the bar that each task draws, as a line."""

    def __init__(self) -> None:
        self._states: dict[int | None, _State] = {}  # oldest first
        self._size = 0
        self._shown_at: dict[int | None, float] = {}

    def __bool__(self) -> bool:
        return bool(self._states)

    def __contains__(self, task: int | None) -> bool:
        return task in self._states

    def draw(self, first: bytes, line: LogLine) -> list[LogLine]:
        """Take a new state and the ``first`` one of its line; return the last state of a bar that this one ends."""
        before = self._states.get(line.rank)
        if before is not None and not line.payload:
            return []  # a bar that wipes itself keeps its last state
        ended: list[LogLine] = []
        if before is not None and _fell(before.line.payload, first):
            ended = self.finish(line.rank)
        elif before is not None:
            self._drop(line.rank)
        self._states[line.rank] = _State(line)
        self._size += len(line.payload)
        while self._size > BARS_CAP or len(self._states) > _TASKS_CAP:
            ended += self.finish(next(iter(self._states)))
        return ended

    def finish(self, task: int | None) -> list[LogLine]:
        """Return the last state of this task's bar if it was not shown: the task wrote another line."""
        if task not in self._states:
            return []
        state = self._drop(task)
        return [] if state.shown else [state.line]

    def end(self) -> list[LogLine]:
        """Return all held states that were not shown."""
        return [line for task in list(self._states) for line in self.finish(task)]

    def late(self, now: float) -> list[LogLine]:
        """Return the states to show now: the first of a bar, one every EVERY seconds, and one without a successor."""
        lines = []
        for task, state in self._states.items():
            if state.seen is None:
                state.seen = now
            if not state.shown and self._is_due(task, state.seen, now):
                state.shown = True
                if len(self._shown_at) > _TASKS_CAP:
                    self._shown_at.clear()
                self._shown_at[task] = now
                lines.append(state.line)
        return lines

    def _is_due(self, task: int | None, seen: float, now: float) -> bool:
        shown_at = self._shown_at.get(task)
        return shown_at is None or now - shown_at >= EVERY or now - seen >= SETTLED

    def _drop(self, task: int | None) -> _State:
        state = self._states.pop(task)
        self._size -= len(state.line.payload)
        return state


def draws(data: bytes) -> bool:
    """Return whether these bytes may draw a progress bar."""
    return b"\r" in data or b"\b" in data


def as_returns(data: bytes) -> bytes:
    """Return bytes of the same length with carriage returns for backspaces that go back to the start of a bar.

    Keras and others go back so, by as many backspaces as the bar is long. Fewer than four are an underlined letter, or
    a wheel that turns, unless they are the rest of a run that was cut.
    """
    return _BACK.sub(lambda run: b"\r" * len(run[0]), data) if b"\b" in data else data


def last_state(payload: bytes) -> bytes:
    """Return the last visible state of a progress line, without the blanks that wipe it."""
    shown = payload.rstrip(BLANK)
    return shown[shown.rfind(b"\r") + 1 :]


def first_state(payload: bytes) -> bytes:
    """Return the first state of a line that begins with a carriage return, enough of it for its count."""
    return payload[:_FIRST].lstrip(b"\r").partition(b"\r")[0] if payload[:1] == b"\r" else b""


def from_last_state(payload: bytes) -> tuple[bytes, bool]:
    """Return an unfinished progress line without its earlier states, and whether it had any.

    A state keeps the carriage return before it; blanks after it keep one too, so that the next state is separate.
    """
    shown = payload.rstrip(BLANK)
    start = max(0, shown.rfind(b"\r"))
    if payload.find(b"\r", len(shown)) < 0:
        return payload[start:], start > 0
    return shown[start:] + payload[payload.rfind(b"\r") :], start > 0


def count(state: bytes) -> int | None:
    """Return the progress of a bar: its percentage, else its steps, else its first number, else None."""
    for pattern in _COUNTS:
        number = pattern.search(state, 0, _COUNTED_IN)
        if number is not None:
            return int(number[1])
    return None


def _fell(before: bytes, now: bytes) -> bool:
    was, is_now = count(before), count(now)
    return was is not None and is_now is not None and is_now < was
