"""The order of two files whose lines bear no time: taken from a clock that noted how long each was, and when."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from clusterrun.logs.wanted import Tick


def turns(ticks: Sequence[Tick], sizes: Sequence[int], start: Sequence[int]) -> list[tuple[int, int, int]]:
    """Parts of out (0) and err (1), as (which, from, to) in bytes, in the order of writing.

    They go from ``start`` to ``sizes``. Between two ticks out comes first: nothing tells.
    """
    places = [*((tick.out, tick.err) for tick in _since_cut(ticks)), tuple(sizes)]
    parts: list[tuple[int, int, int]] = []
    at = list(start)
    for place in places:
        for which, size in enumerate(sizes):
            to = min(place[which], size)
            if to > at[which]:
                parts.append((which, at[which], to))
                at[which] = to
    return parts


def offsets_at(ticks: Sequence[Tick], sizes: Sequence[int], time: float) -> tuple[int, int]:
    """How long both files were at a time, by the last tick before it; 0 where there is none or the file was cut."""
    before = [tick for tick in _since_cut(ticks) if tick.time <= time]
    if not before:
        return 0, 0
    out, err = (at if at <= size else 0 for at, size in zip(before[-1][1:], sizes, strict=True))
    return out, err


def _since_cut(ticks: Sequence[Tick]) -> list[Tick]:
    """The ticks that speak of the files as they are: a length that fell shows that a file was cut."""
    cut = max((i for i, (a, b) in enumerate(pairwise(ticks), 1) if b.out < a.out or b.err < a.err), default=0)
    return list(ticks[cut:])
