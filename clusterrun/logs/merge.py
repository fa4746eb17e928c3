"""Interleave two files whose lines have no time, by a clock that recorded the size of each over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from clusterrun.logs.request import Tick


def interleave(ticks: Sequence[Tick], sizes: Sequence[int], start: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return parts of out (0) and err (1) in the order of writing, as (which, from, to) in bytes.

    They go from ``start`` to ``sizes``. Between two ticks the order is unknown, and out comes first.
    """
    points = [*((tick.out, tick.err) for tick in _since_cut(ticks)), tuple(sizes)]
    parts: list[tuple[int, int, int]] = []
    at = list(start)
    for point in points:
        for which, size in enumerate(sizes):
            to = min(point[which], size)
            if to > at[which]:
                parts.append((which, at[which], to))
                at[which] = to
    return parts


def offsets_at(ticks: Sequence[Tick], sizes: Sequence[int], time: float) -> tuple[int, int]:
    """Return the sizes of both files at the last tick before a time; 0 without such a tick, or if the file was cut."""
    before = [tick for tick in _since_cut(ticks) if tick.time <= time]
    if not before:
        return 0, 0
    out, err = (at if at <= size else 0 for at, size in zip(before[-1][1:], sizes, strict=True))
    return out, err


def _since_cut(ticks: Sequence[Tick]) -> list[Tick]:
    """Return the ticks after the last cut of a file, which shows as a smaller size."""
    cut = max((i for i, (a, b) in enumerate(pairwise(ticks), 1) if b.out < a.out or b.err < a.err), default=0)
    return list(ticks[cut:])
