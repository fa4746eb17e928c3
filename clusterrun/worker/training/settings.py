"""The checks of the settings that all tasks share; base/settings.py has their rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...base.errors import WorkerError, suggestion
from ...base.settings import Setting, Training, rows
from .sizes import BatchSizes, solve


def check(config: Any, world_size: int) -> None:
    """Raise WorkerError (status 2) for a value, or a combination of batch sizes, that is not possible."""
    for row in rows(type(config)):
        _check_row(row, getattr(config, row.name))
    _check_numbers(config)
    if config.lr_scaling != "none" and not config.base_batch_size:
        needed = f"the global batch size that lr={config.lr:g} is meant for"
        raise WorkerError(f"lr_scaling={config.lr_scaling} needs base_batch_size, {needed}", status=2)
    if config.base_batch_size and config.lr_scaling == "none":
        raise WorkerError(
            "base_batch_size needs lr_scaling=linear or sqrt: set lr_scaling, or omit base_batch_size", status=2
        )
    if config.early_stopping and config.eval_every == 0:
        raise WorkerError("early_stopping needs evaluations before the end: set eval_every, such as 1ep", status=2)
    if config.export and not config.export.endswith((".pt", ".pth")):
        raise WorkerError(f"export={config.export} must name a .pt file, such as checkpoint_epoch_N.pt", status=2)
    _check_parallel(config)
    _check_prompts(config.sample_prompts)
    batch_sizes(config, world_size)


def _check_row(row: Setting, value: Any) -> None:
    if row.choices and value not in row.choices:
        listed = ", ".join(row.choices)
        raise WorkerError(f"{row.name}={value}{suggestion(value, row.choices)}: choose one of {listed}", status=2)
    if row.least is not None and not isinstance(value, str) and value < row.least:
        raise WorkerError(f"{row.name} must be at least {row.least}, got {value}", status=2)


def _check_parallel(config: Any) -> None:
    """Refuse what needs the whole model on each rank, or gradients without FSDP's sums."""
    if config.parallel != "fsdp":
        return
    if config.export:
        raise WorkerError("export needs parallel=ddp: it writes the whole model and its optimizer", status=2)
    if config.auto_micro_batch:
        raise WorkerError("auto_micro_batch needs parallel=ddp: set micro_batch_size instead", status=2)
    if config.precision == "fp16":
        raise WorkerError("precision=fp16 needs parallel=ddp: set precision=bf16 instead", status=2)
    if config.compile == "true":
        raise WorkerError(
            "compile=true needs parallel=ddp: a rank whose compiler fails would stop the others", status=2
        )
    if config.measure:
        raise WorkerError("plan --measure needs parallel=ddp: it measures steps without sums over the ranks", status=2)


def _check_prompts(prompts: Sequence[str]) -> None:
    for prompt in prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise WorkerError(f"sample_prompts: {prompt!a:.60} is not UTF-8 text", status=2) from None


def _check_numbers(config: Any) -> None:
    for key in ("lr", "epochs"):
        value = getattr(config, key)
        if not 0 < value < math.inf:
            raise WorkerError(f"{key} must be above 0, got {value}", status=2)
    if config.epochs > 1e6:
        raise WorkerError(f"epochs must be at most a million, got {config.epochs}", status=2)
    for key in ("weight_decay", "clip", "time_margin"):
        value = getattr(config, key)
        if not 0 <= value < math.inf:
            raise WorkerError(f"{key} must be 0 or more, got {value}", status=2)
    held_out = getattr(config, "held_out", 0.5)
    if not 0 < held_out < 1:
        raise WorkerError(f"held_out must be greater than 0 and less than 1, got {held_out}", status=2)


def batch_sizes(config: Training, world_size: int) -> BatchSizes:
    """Return the batch sizes of a run; raises WorkerError (status 2) if they do not divide over its ranks."""
    sizes = (config.global_batch_size, config.micro_batch_size, config.grad_accum_steps)
    if config.ladder and (config.global_batch_size or not any(sizes)):
        whole = solve(*sizes, config.ladder, config.default_global_batch)
        sizes = (whole.global_batch_size, whole.micro_batch_size, 0)
    return solve(*sizes, world_size, config.default_global_batch)
