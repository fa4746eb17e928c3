"""Numbers of a column, made comparable by the mean and the spread of its training rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Scale(NamedTuple):
    """A column whose numbers are read as (number - `mean`) / `scale`."""

    column: str
    mean: float
    scale: float

    def apply(self, number: float) -> float:
        """Return the number in units of the spread around the mean."""
        return (number - self.mean) / self.scale


def scale_of(column: str, numbers: Iterable[float | None]) -> Scale:
    """Return the scale of (training) numbers; of those that are all the same it is 1."""
    known = [number for number in numbers if number is not None]
    if not known or min(known) == max(known):
        return Scale(column, known[0] if known else 0.0, 1.0)
    mean = math.fsum(known) / len(known)
    return Scale(column, mean, statistics.pstdev(known, mean) or 1.0)


def features(scales: Sequence[Scale], numbers: Sequence[float | None]) -> list[float]:
    """Return two numbers per column: the scaled one, 0 if it is not known, and whether it is known."""
    scaled = [0.0 if number is None else scale.apply(number) for scale, number in zip(scales, numbers, strict=True)]
    return [*scaled, *(float(number is not None) for number in numbers)]
