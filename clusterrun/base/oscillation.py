"""Whether a loss oscillates: whether it rises far and falls again, time after time, and by more than its noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

FEWEST = 30  # losses
PEAKS = 3
SHARE = 0.25  # of the first loss: a smaller rise or fall is none
NOISE = 5.0  # times the noise, too
ADVICE = "try a longer warm-up, a lower learning rate, or gradient accumulation"
_LARGE, _OF_NORMAL = 0.8, 1.812  # of ten steps of normal noise eight are smaller than 1.812 of its standard deviations


def describe(losses: Sequence[float]) -> str:
    """Return that a loss oscillates, and what to try; empty if it does not, or only did in its first half.

    `losses` are those since the start, in their order, perhaps only some of them. The noise is what changes from one to
    the next: a loss that jumps up and down at random from one to the next is only noisy.
    """
    if len(losses) < FEWEST or not all(0 < loss < math.inf for loss in losses):  # a negative one has another meaning
        return ""
    smooth = [median(losses[i : i + 3]) for i in range(len(losses) - 2)]  # without single bad batches
    least_change = max(SHARE * median(losses[:3]), NOISE * noise_of(losses))
    peaks = find_peaks(smooth, least_change, NOISE * noise_of([math.log(loss) for loss in losses]))
    if len(peaks) < PEAKS or peaks[-1] < len(smooth) / 2:
        return ""
    return f"the loss oscillates: it rose by {least_change:.2g} or more and fell again {len(peaks)} times; {ADVICE}"


def noise_of(values: Sequence[float]) -> float:
    """Return the standard deviation of the noise of a series."""
    steps = sorted(abs(after - before) for before, after in pairwise(values))
    return steps[int(_LARGE * len(steps))] / _OF_NORMAL


def find_peaks(values: Sequence[float], least_change: float, least_log_ratio: float) -> list[int]:
    """Return where the values are highest between a rise and a fall that are both this large."""

    def is_far(first: float, second: float) -> bool:
        return abs(first - second) >= least_change and abs(math.log(first) - math.log(second)) >= least_log_ratio

    peaks: list[int] = []
    turn, is_rising = 0, False  # where the values are highest (if rising) or lowest since the last turn
    for at, value in enumerate(values):
        if value != values[turn] and (value > values[turn]) == is_rising:
            turn = at
        elif is_far(values[turn], value):
            peaks += [turn] if is_rising else []
            turn, is_rising = at, not is_rising
    return peaks
