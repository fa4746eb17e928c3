"""What is due at which step: the learning rate, and how often to evaluate and to save."""

from __future__ import annotations

import math
from fractions import Fraction

from ...base.settings import EPOCHS

FLOOR = 0.1  # the schedules cosine and linear end at this fraction of lr


def scaled(lr: float, rule: str, global_batch_size: int, base_batch_size: int) -> float:
    """Return a learning rate for `base_batch_size`, scaled to this global batch: rule is none, linear or sqrt."""
    if rule == "none":
        return lr
    ratio = global_batch_size / base_batch_size
    return lr * (ratio if rule == "linear" else math.sqrt(ratio))


def in_steps(every: int | str, steps_per_epoch: int) -> Fraction:
    """Return a number of steps or of epochs (`1ep`) as steps: exactly, so that 0.1 epochs come ten times in each."""
    epochs = EPOCHS.fullmatch(str(every))
    return Fraction(epochs["number"]) * steps_per_epoch if epochs else Fraction(every)


def learning_rate(step: int, steps: int, lr: float, warmup: int, schedule: str) -> float:
    """Return the rate of a step: linear warmup to `lr`, then cosine, linear or constant. Steps count from 1."""
    if step <= warmup:
        return lr * step / warmup
    if schedule == "constant":
        return lr
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    left = 0.5 * (1 + math.cos(math.pi * progress)) if schedule == "cosine" else 1 - progress
    return lr * (FLOOR + (1 - FLOOR) * left)
