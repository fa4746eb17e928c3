"""Batch sizes, steps per epoch and learning rates by number of GPUs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clusterrun.base.batches import NoSolution, solve
from clusterrun.base.errors import RequestError
from clusterrun.base.units import clause, plural

SMALL_BATCH = 256
"""Below this global batch, linear and square-root scaling of the learning rate say little."""
WARMUP_SHARE, LEAST_WARMUP = 0.03, 10


@dataclass(frozen=True)
class Training:
    """The data, the batch sizes, the length of the training and the learning rate, named as the settings of a task.

    Batch sizes are in samples; 0 means not set, and any two give the third. ``default_global_batch`` is the global
    batch if nothing is set, rounded up to divide over the GPUs. ``steps`` are optimizer steps; 0 means ``epochs``
    passes over the data. ``lr`` is for ``base_batch_size`` (0: the global batch of one GPU). ``warmup`` is in optimizer
    steps; None: a suggestion.
    """

    samples: int
    global_batch_size: int = 0
    micro_batch_size: int = 0
    grad_accum_steps: int = 0
    default_global_batch: int = 0
    base_batch_size: int = 0
    epochs: float = 1.0
    steps: int = 0
    lr: float | None = None
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
    smallest = min(solve_batch(training, gpus)[0] for gpus in gpu_counts)
    if training.samples < smallest:
        samples = f"{training.samples:,} sample{'s' * (training.samples != 1)}"
        raise RequestError(
            f"{samples} cannot fill one global batch of {smallest:,}",
            hint="use fewer GPUs, or a smaller --micro-batch or --global-batch",
        )
    of_both = training.micro_batch_size * training.grad_accum_steps  # a global batch is then for other numbers of GPUs
    one_gpu = of_both or solve_batch(training, 1)[0]
    return [_plan(training, gpus, one_gpu) for gpus in gpu_counts]


def _plan(training: Training, gpus: int, one_gpu: int) -> GpuPlan:
    """Return the plan for a number of GPUs; ``one_gpu`` is the global batch of one."""
    global_batch, micro, accum = solve_batch(training, gpus)
    full, rest = divmod(training.samples, global_batch)
    steps = full + bool(rest)
    total = training.steps or math.ceil(training.epochs * (full if training.drop_last else steps))
    suggested = min(max(LEAST_WARMUP, math.ceil(total * WARMUP_SHARE)), total)
    lr, ratio = training.lr, global_batch / (training.base_batch_size or one_gpu)
    return GpuPlan(
        gpus, global_batch, micro, accum, steps, full, steps / math.ceil(training.samples / one_gpu), total,
        warmup=suggested if training.warmup is None else training.warmup,
        lr_linear=None if lr is None else lr * ratio,
        lr_sqrt=None if lr is None else lr * math.sqrt(ratio),
    )  # fmt: skip


def solve_batch(training: Training, gpus: int) -> tuple[int, int, int]:
    """Return global batch, micro batch and accumulation on a number of GPUs, by the rules of the shipped tasks.

    Raises RequestError with the nearest possible sizes.
    """
    global_batch, micro, accum = training.global_batch_size, training.micro_batch_size, training.grad_accum_steps
    if not (global_batch or micro or training.default_global_batch):
        raise RequestError("the batch size is not set", hint="for example --micro-batch 4 or --global-batch 32")
    try:
        return solve(global_batch, micro, accum, gpus, training.default_global_batch)
    except NoSolution as error:
        if error.nearest:
            raise _uneven(training, gpus, error.nearest) from None
        product = f"micro batch {micro} x accumulation {accum} x {plural(gpus, 'GPU')}"
        fitting, rest = divmod(global_batch, micro * accum)
        raise RequestError(
            f"global batch {global_batch:,} does not equal {product}",
            hint="omit the global batch, the micro batch or the accumulation"
            + ("" if rest else f", or use --gpus {fitting}"),
        ) from None


def _uneven(training: Training, gpus: int, nearest: Sequence[int]) -> RequestError:
    micro, accum = training.micro_batch_size, training.grad_accum_steps
    parts = clause(micro, " with micro batches of {}") or clause(accum, " with accumulation {}")
    return RequestError(
        f"a global batch of {training.global_batch_size:,} cannot be split evenly over {plural(gpus, 'GPU')}{parts}",
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
