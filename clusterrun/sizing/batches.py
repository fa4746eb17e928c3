"""Batch sizes, steps per epoch and learning rates by number of GPUs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from clusterrun.base.batches import NoSolution, solve
from clusterrun.base.errors import RequestError
from clusterrun.base.units import plural

SMALL_BATCH = 256
"""Below this global batch, linear and square-root scaling of the learning rate say little."""
WARMUP_SHARE, LEAST_WARMUP = 0.03, 10


class BatchSettings(NamedTuple):
    """Batch sizes in samples as set by the user; 0 means not set, and any two give the third.

    ``default_global`` is the global batch if nothing is set, rounded up to divide over the GPUs.
    """

    global_batch: int = 0
    micro_batch: int = 0
    grad_accum: int = 0
    default_global: int = 0


class Training(NamedTuple):
    """The data, the length of the training and the learning rate.

    ``steps`` are optimizer steps; 0 means ``epochs`` passes over the data. ``lr`` is for ``base_batch`` (0: the global
    batch of one GPU). ``warmup`` is in optimizer steps; None: a suggestion.
    """

    samples: int
    batches: BatchSettings
    epochs: float = 1.0
    steps: int = 0
    lr: float | None = None
    base_batch: int = 0
    warmup: int | None = None
    drop_last: bool = False


class GpuPlan(NamedTuple):
    """Batches, steps and learning rates on one number of GPUs.

    ``steps_per_epoch`` counts the last, incomplete batch; ``steps_drop_last`` does not. ``share`` is the steps per
    epoch divided by those of one GPU. The rates are None if no rate is set.
    """

    gpus: int
    global_batch: int
    micro_batch: int
    grad_accum: int
    steps_per_epoch: int
    steps_drop_last: int
    share: float
    total_steps: int
    warmup: int
    lr_linear: float | None
    lr_sqrt: float | None


def plan_batches(training: Training, gpu_counts: Sequence[int]) -> list[GpuPlan]:
    """Return the plan for each number of GPUs.

    Raises RequestError for batch sizes that do not divide, and for data that does not fill the smallest global batch.
    """
    batches = training.batches
    smallest = min(solve_batch(batches, gpus)[0] for gpus in gpu_counts)
    if training.samples < smallest:
        samples = f"{training.samples:,} sample{'s' * (training.samples != 1)}"
        raise RequestError(
            f"{samples} cannot fill one global batch of {smallest:,}",
            hint="use fewer GPUs, or a smaller --micro-batch or --global-batch",
        )
    of_both = batches.micro_batch * batches.grad_accum  # a global batch is then for other numbers of GPUs
    one_gpu = of_both or solve_batch(batches, 1)[0]
    return [_plan(training, gpus, one_gpu) for gpus in gpu_counts]


def _plan(training: Training, gpus: int, one_gpu: int) -> GpuPlan:
    """Return the plan for a number of GPUs; ``one_gpu`` is the global batch of one."""
    global_batch, micro, accum = solve_batch(training.batches, gpus)
    full, rest = divmod(training.samples, global_batch)
    steps = full + bool(rest)
    total = training.steps or math.ceil(training.epochs * (full if training.drop_last else steps))
    suggested = min(max(LEAST_WARMUP, math.ceil(total * WARMUP_SHARE)), total)
    lr, ratio = training.lr, global_batch / (training.base_batch or one_gpu)
    return GpuPlan(
        gpus, global_batch, micro, accum, steps, full, steps / math.ceil(training.samples / one_gpu), total,
        warmup=suggested if training.warmup is None else training.warmup,
        lr_linear=None if lr is None else lr * ratio,
        lr_sqrt=None if lr is None else lr * math.sqrt(ratio),
    )  # fmt: skip


def solve_batch(batches: BatchSettings, gpus: int) -> tuple[int, int, int]:
    """Return global batch, micro batch and accumulation on a number of GPUs, by the rules of the shipped tasks.

    Raises RequestError with the nearest possible sizes.
    """
    global_batch, micro, accum, default_global = batches
    if not (global_batch or micro or default_global):
        raise RequestError("the batch size is not set", hint="for example --micro-batch 4 or --global-batch 32")
    try:
        return solve(global_batch, micro, accum, gpus, default_global)
    except NoSolution as error:
        if error.nearest:
            raise _uneven(batches, gpus, error.nearest) from None
        product = f"micro batch {micro} x accumulation {accum} x {plural(gpus, 'GPU')}"
        fitting, rest = divmod(global_batch, micro * accum)
        raise RequestError(
            f"global batch {global_batch:,} does not equal {product}",
            hint="omit the global batch, the micro batch or the accumulation"
            + ("" if rest else f", or use --gpus {fitting}"),
        ) from None


def _uneven(batches: BatchSettings, gpus: int, nearest: Sequence[int]) -> RequestError:
    size = batches.micro_batch or batches.grad_accum
    parts = f" with {'micro batches of' if batches.micro_batch else 'accumulation'} {size}" if size else ""
    return RequestError(
        f"a global batch of {batches.global_batch:,} cannot be split evenly over {plural(gpus, 'GPU')}{parts}",
        hint=f"use --global-batch {' or '.join(map(str, nearest))}",
    )


def batch_notes(training: Training, plans: Sequence[GpuPlan]) -> list[str]:
    """Return warnings about the scaling rules and about epochs without a step."""
    notes = []
    small = [plan for plan in plans if plan.global_batch < SMALL_BATCH]
    if small and training.lr is not None:
        most = small[-1].gpus
        where = "" if len(small) == len(plans) else f" on {'up to ' if most > 1 else ''}{plural(most, 'GPU')}"
        notes.append(
            f"the global batch is below {SMALL_BATCH}{where}, too small for the learning rate scaling rules to be"
            " reliable; try the original learning rate first, and scale it only if training is stable"
        )
    if empty := [plan for plan in plans if not plan.steps_drop_last]:
        notes.append(
            f"with drop_last, an epoch on {plural(empty[0].gpus, 'GPU')} has no steps: the data does not fill one batch"
        )
    return notes
