"""A series of numbers of any length, kept as a few of them, drawn in one line, or as a curve with round numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Generic, TypeVar

SPARKS = "▁▂▃▄▅▆▇█"
T = TypeVar("T")


class Thinned(Generic[T]):
    """At most ``most`` values of a series: each value at first, then every second, every fourth and so on."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._every, self._skipped = 1, 0
        self.values: list[T] = []

    def add(self, value: T) -> None:
        """Take the next value of the series."""
        self._skipped += 1
        if self._skipped < self._every:
            return
        self._skipped = 0
        self.values.append(value)
        if len(self.values) > self._most:
            self._every *= 2
            self.values = self.values[::2]


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the values as one line of bars, at most ``width`` of them; empty if there are fewer than two."""
    if len(values) < 2:
        return ""
    step = max(1.0, len(values) / width)
    shown = [values[int(at * step)] for at in range(min(width, len(values)))]
    shown[-1] = values[-1]
    least, most = min(shown), max(shown)
    if least == most:
        return SPARKS[0] * len(shown)
    return "".join(SPARKS[int((value - least) / (most - least) * (len(SPARKS) - 1) + 0.5)] for value in shown)


Point = tuple[float, float | None]  # a step and a value; None: the value was no number, which breaks a curve
P = TypeVar("P", bound=Point)


def thin(points: Sequence[P], most: int) -> list[P]:
    """Return about ``most`` points of a curve: the least and the largest of each stretch, so that spikes stay."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(2 * len(points) / most)
    thinned: list[P] = []
    for start in range(0, len(points), size):
        thinned += _extremes(points[start : start + size])
    return thinned if thinned[-1] == points[-1] else [*thinned, points[-1]]


def _extremes(stretch: Sequence[P]) -> list[P]:
    """Return the points with the least and the largest value, and the first without one, in their order."""
    known = [point for point in stretch if point[1] is not None]
    kept = [point for point in stretch if point[1] is None][:1]
    if known:
        kept += [min(known, key=itemgetter(1)), max(known, key=itemgetter(1))]
    return [point for point in stretch if point in kept]


def round_numbers(least: float, most: float, about: int) -> list[float]:
    """Return at most about so many round numbers between two: 1, 2, 2.5 or 5 times a power of ten apart."""
    size = most - least
    smallest = max(1e-9 * max(abs(least), abs(most)), 1e-300)  # of a smaller one all would be written as one number
    if not smallest < size < math.inf:
        return [float(least)]
    step = 10.0 ** math.floor(math.log10(size / about))
    step *= next((factor for factor in (1, 2, 2.5, 5) if size <= about * factor * step), 10)
    first, last = math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]
