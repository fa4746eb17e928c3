"""The settings that all tasks share, and their checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...base.errors import WorkerError, suggestion
from .sizes import BatchSizes, solve

CHOICES = {
    "precision": ("auto", "bf16", "fp16", "fp32"),
    "schedule": ("cosine", "linear", "constant"),
    "lr_scaling": ("none", "linear", "sqrt"),
    "on_nan": ("stop", "skip"),
    "on_bad_row": ("stop", "skip"),
}
LEAST = {
    "steps": 0,
    "global_batch_size": 0,
    "micro_batch_size": 0,
    "grad_accum_steps": 0,
    "base_batch_size": 0,
    "warmup": 0,
    "eval_every": 0,
    "eval_samples": 0,
    "log_every": 1,
    "save_every": 0,
    "keep_last": 1,
    "ladder": 0,
    "measure": 0,
    "sample_tokens": 1,
    "seq_len": 2,
    "vocab": 300,  # it must hold 256 bytes and the special tokens
}


@dataclass(frozen=True)
class Training:
    """The settings of every task, set with `KEY=VALUE`. Batch sizes are in samples; 0 and "" mean: not set."""

    task: ClassVar[str] = "train"
    default_global_batch: ClassVar[int] = 16  # if no batch size is set

    # length of the training
    steps: int = 0  # optimizer steps; 0: as many as `epochs` take
    epochs: float = 1.0  # passes over the data, if steps=0

    # batch sizes: any two of the three give the third; micro_batch_size alone means no accumulation
    global_batch_size: int = 0  # samples per step, over all ranks
    micro_batch_size: int = 0  # samples per forward pass of one rank
    grad_accum_steps: int = 0  # forward passes of a rank per step
    auto_micro_batch: bool = False  # halve the micro batch until a step fits in memory; the global batch stays
    drop_last: bool = False  # drop the last, smaller batch of an epoch

    # AdamW
    lr: float = 1e-3  # highest learning rate
    lr_scaling: str = "none"  # none, linear or sqrt: scale lr by global_batch_size / base_batch_size
    base_batch_size: int = 0  # the global batch size that lr is for, with lr_scaling
    warmup: int = 10  # steps of linear warmup
    schedule: str = "cosine"  # cosine, linear (both down to a tenth of lr) or constant
    weight_decay: float = 0.1  # of matrices only
    clip: float = 1.0  # highest norm of the gradient; 0: no clipping

    # numerics
    precision: str = "auto"  # bf16, fp16, fp32; auto: bf16 if the GPU supports it, else fp16; fp32 on a CPU
    compile: bool = False  # torch.compile
    deterministic: bool = False  # torch's deterministic algorithms; slower on a GPU
    seed: int = 1  # of weights, order of samples, dropout and noise

    # evaluation, logging and samples
    eval_every: int = 25  # steps between evaluations; 0: only at the end
    eval_samples: int = 256  # held-out samples per evaluation at most, evenly spread; 0: all
    log_every: int = 10  # steps between rows of metrics.jsonl
    sample_prompts: tuple[str, ...] = ()  # generate from these prompts at each evaluation
    sample_tokens: int = 40  # tokens to generate per prompt

    ladder: int = 0  # for `submit --ladder`: the ranks of the whole job, whose global and micro batch this run has
    measure: int = 0  # for `plan --measure`: after this many steps gradients are not averaged; nothing is saved

    # bad values and bad data
    on_nan: str = "stop"  # stop, or skip steps whose gradient is not finite (20 in a row stop the run)
    on_bad_row: str = "stop"  # stop, or skip rows of the data that do not parse

    # checkpoints and results
    save_every: int = 0  # steps between checkpoints; 0: only at the end and before an early stop
    keep_last: int = 2  # checkpoints kept, besides the best and the one resumed from
    checkpoint_dir: str = ""  # default: in the run's folder
    resume: str = "auto"  # auto (this run's checkpoints), no, a checkpoint, a folder of them, or a .pt file
    time_margin: float = 0.0  # seconds before the time limit to save and stop; 0: from the measured time of saving
    save_path: str = ""  # folder for the finished model in Hugging Face format; default: in the run's folder
    push_to_hub: str = ""  # org/name on the Hugging Face Hub to push the finished model to
    tensorboard: bool = False  # also log to TensorBoard, in the run's folder
    wandb: str = ""  # also log to this W&B project


def check(config: Any, world_size: int) -> None:
    """Raise WorkerError (status 2) for a value, or a combination of batch sizes, that is not possible."""
    for key, choices in CHOICES.items():
        value = getattr(config, key, choices[0])
        if value not in choices:
            raise WorkerError(
                f"{key}={value}{suggestion(value, choices)}: choose one of {', '.join(choices)}", status=2
            )
    for key, least in LEAST.items():
        size: int = getattr(config, key, least)
        if size < least:
            raise WorkerError(f"{key} must be at least {least}, got {size}", status=2)
    _check_numbers(config)
    if config.lr_scaling != "none" and not config.base_batch_size:
        needed = f"the global batch size that lr={config.lr:g} is meant for"
        raise WorkerError(f"lr_scaling={config.lr_scaling} needs base_batch_size, {needed}", status=2)
    if config.base_batch_size and config.lr_scaling == "none":
        raise WorkerError(
            "base_batch_size needs lr_scaling=linear or sqrt: set lr_scaling, or omit base_batch_size", status=2
        )
    _check_prompts(config.sample_prompts)
    batch_sizes(config, world_size)


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
