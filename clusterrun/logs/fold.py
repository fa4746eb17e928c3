"""Fold the same line of many ranks into one line with its ranks.

A line waits for the same line of other ranks: for a fraction of a second while a log is followed, else for a number of
lines. Lines are returned in the order of their first rank. A rank joins no line that is before one of its own waiting
lines, so the lines of each rank keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from clusterrun.logs.lines import LogLine

HOLD = 0.15
"""The longest wait of a line in seconds, while a log is followed."""
_NEAR = 32
"""The longest wait of a line, in lines of each rank, else."""
_WAITING = 4096  # the most lines that wait ...
_WAITING_SIZE = 1024 * 1024  # ... and the most characters in them


@dataclass
class Folded:
    """A line, and the ranks that wrote it, in the order of writing."""

    line: LogLine
    ranks: list[int]
    at: float = 0.0
    serial: int = 0
    rank_set: set[int] = field(default_factory=set)


class Folder:
    """Folds lines in the order in which they are read. A line with ``world`` ranks is complete.

    ``now`` is in seconds; without it, ``add`` measures waiting in lines.
    """

    def __init__(self, world: int | None = None) -> None:
        self._world = world
        self._waiting: deque[Folded] = deque()
        self._by_text: dict[tuple[str, str], Folded] = {}  # the last waiting line with this stream and text
        self._last: dict[int, int] = {}  # rank -> serial of its last line, which may still wait
        self._size = 0
        self._count = 0  # lines added
        self._serial = 0  # lines that have waited, in all

    def add(self, lines: Iterable[LogLine], now: float | None = None) -> Iterator[Folded]:
        """Add lines; yield those that need not wait any longer."""
        for line in lines:
            rank = line.rank
            if rank is None or line.cut or line.notice:  # not folded: they show what happened, in order
                yield from self.end()
                yield Folded(line, [])
                continue
            self._count += 1
            key = line.stream, line.text
            same = self._by_text.get(key)
            if same is not None and rank not in same.rank_set and self._last.get(rank, -1) < same.serial:
                same.ranks.append(rank)
                same.rank_set.add(rank)
                self._last[rank] = same.serial
            else:
                self._serial += 1
                new = Folded(line, [rank], self._count if now is None else now, self._serial, {rank})
                self._waiting.append(new)
                self._by_text[key] = new
                self._last[rank] = self._serial
                self._size += len(line.text)
            yield from self._due(self._count if now is None else now, HOLD if now is not None else None)

    def late(self, now: float) -> Iterator[Folded]:
        """Yield the lines that have waited long enough."""
        return self._due(now, HOLD)

    def end(self) -> Iterator[Folded]:
        """Yield all waiting lines."""
        while self._waiting:
            yield self._pop()

    def _due(self, now: float, hold: float | None) -> Iterator[Folded]:
        if hold is None:
            hold = _NEAR * max(len(self._last), 1)
        while self._waiting:
            first = self._waiting[0]
            if (
                now - first.at < hold
                and len(first.ranks) != self._world
                and len(self._waiting) <= _WAITING
                and self._size <= _WAITING_SIZE
            ):
                return
            yield self._pop()

    def _pop(self) -> Folded:
        first = self._waiting.popleft()
        key = first.line.stream, first.line.text
        if self._by_text.get(key) is first:
            del self._by_text[key]
        self._size -= len(first.line.text)
        if not self._waiting and len(self._last) > 65_536:
            self._last.clear()
        return first
