"""What many ranks say at once, said once: identical lines within a moment become one, with its ranks.

A line waits for its like from other ranks, for a fraction of a second where time counts, for some lines where it does
not. Lines leave in the order in which the first of each came, and a rank joins no line that stands before one of its
own, so each rank's lines stay in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from clusterrun.logs.lines import LogLine

HOLD = 0.15
"""Seconds that a line waits at most, where time counts."""
_NEAR = 32
"""Lines from each rank that may stand between two that are folded, where only their places count."""
_WAITING = 4096  # lines that wait at most ...
_WAITING_SIZE = 1024 * 1024  # ... and their characters


@dataclass
class Folded:
    """A line, and the ranks that said it, in the order in which they did."""

    line: LogLine
    ranks: list[int]
    at: float = 0.0
    serial: int = 0
    said_by: set[int] = field(default_factory=set)


class Folder:
    """Takes lines in the order in which they are read, gives them folded; ``world`` ranks complete a line.

    ``now`` (seconds) tells how long a line has waited; without it, ``add`` counts lines.
    """

    def __init__(self, world: int | None = None) -> None:
        self._world = world
        self._waiting: deque[Folded] = deque()
        self._by_text: dict[tuple[str, str], Folded] = {}  # the last that waits with this stream and text
        self._last: dict[int, int] = {}  # rank -> serial of its last line, where that may still wait
        self._size = 0
        self._count = 0  # lines taken
        self._serial = 0  # lines that wait, ever

    def add(self, lines: Iterable[LogLine], now: float | None = None) -> Iterator[Folded]:
        """Take lines; gives those that need not wait any longer."""
        for line in lines:
            rank = line.rank
            if rank is None or line.cut or line.notice:  # nobody's lines are what happened: they come as they are
                yield from self.end()
                yield Folded(line, [])
                continue
            self._count += 1
            key = line.stream, line.text
            like = self._by_text.get(key)
            if like is not None and rank not in like.said_by and self._last.get(rank, -1) < like.serial:
                like.ranks.append(rank)
                like.said_by.add(rank)
                self._last[rank] = like.serial
            else:
                self._serial += 1
                one = Folded(line, [rank], self._count if now is None else now, self._serial, {rank})
                self._waiting.append(one)
                self._by_text[key] = one
                self._last[rank] = self._serial
                self._size += len(line.text)
            yield from self._due(self._count if now is None else now, HOLD if now is not None else None)

    def late(self, now: float) -> Iterator[Folded]:
        """The lines that have waited long enough."""
        return self._due(now, HOLD)

    def end(self) -> Iterator[Folded]:
        """All that wait."""
        while self._waiting:
            yield self._leave()

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
            yield self._leave()

    def _leave(self) -> Folded:
        first = self._waiting.popleft()
        key = first.line.stream, first.line.text
        if self._by_text.get(key) is first:
            del self._by_text[key]
        self._size -= len(first.line.text)
        if not self._waiting and len(self._last) > 65_536:
            self._last.clear()
        return first
