"""The learning rate as a function of the step."""

from __future__ import annotations

import math

FLOOR = 0.1  # cosine and linear end at this share of the highest rate


def scaled(lr: float, rule: str, global_batch_size: int, base_batch_size: int) -> float:
    """Scale a rate that was found at `base_batch_size` to this global batch: rule is none, linear or sqrt."""
    if rule == "none":
        return lr
    ratio = global_batch_size / base_batch_size
    return lr * (ratio if rule == "linear" else math.sqrt(ratio))


def learning_rate(step: int, steps: int, lr: float, warmup: int, schedule: str) -> float:
    """Warm up in a line to `lr`, then follow cosine, linear or constant; steps count from 1 to `steps`."""
    if step <= warmup:
        return lr * step / warmup
    if schedule == "constant":
        return lr
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    left = 0.5 * (1 + math.cos(math.pi * progress)) if schedule == "cosine" else 1 - progress
    return lr * (FLOOR + (1 - FLOOR) * left)
