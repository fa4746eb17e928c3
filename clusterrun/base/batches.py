"""The three batch sizes of a training: any two give the third."""

from __future__ import annotations

import math

LOGITS_AT_ONCE = 2**27
"""The most logits that a head computes at once (half a GB in float32): the loss of more tokens is taken in pieces."""


class NoSolution(ValueError):
    """The sizes contradict each other: two give another global batch, or the global batch does not divide.

    In the second case ``nearest`` are those next to it that do, the smaller one first.
    """

    def __init__(self, nearest: tuple[int, ...] = ()) -> None:
        super().__init__("the batch sizes contradict each other")
        self.nearest = nearest


def solve(global_batch: int, micro: int, accum: int, ranks: int, default_global: int) -> tuple[int, int, int]:
    """Return global batch, micro batch and accumulation in samples from those that are set (0: not set).

    The micro batch alone means no accumulation. If nothing is set, the global batch is ``default_global``, rounded up
    to divide over the ranks. Raises NoSolution.
    """
    fixed, other = (micro, accum) if micro else (accum or 1, 0)
    part = fixed * ranks  # the global batch is a multiple of this
    if not global_batch:
        global_batch = part * max(1, other if micro else math.ceil(default_global / part))
    if other and global_batch != part * other:
        raise NoSolution
    other, rest = divmod(global_batch, part)
    if rest or not other:
        nearest = (global_batch // part * part, (global_batch // part + 1) * part)
        raise NoSolution(tuple(filter(None, nearest)))
    return (global_batch, micro, other) if micro else (global_batch, other, fixed)
