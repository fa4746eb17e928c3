"""The settings that every task shares, and what makes a value of each impossible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import WorkerError, nearest
from .sizes import solve

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
    "sample_tokens": 1,
    "seq_len": 2,
    "vocab": 300,  # 256 bytes and the special tokens come first
}


@dataclass(frozen=True)
class Training:
    """What can be set for every task, with `KEY=VALUE`. Batches are samples; 0 and "" mean: not given.

    How long: `steps`, or else `epochs`. Batches: any two of the three give the third (`micro_batch_size` alone: no
    accumulation). `lr` is scaled by global batch / `base_batch_size` if `lr_scaling` says so. `warmup` is in steps.
    `save_path` takes the finished model in Hugging Face's format (default: in the run's folder). `resume` is "auto"
    (this run's own checkpoints), "no", a checkpoint, a folder of them, or a .pt file with a `model_state_dict`.
    `time_margin` is in seconds: how long before the time limit to save and stop (0: measured).
    """

    task: ClassVar[str] = "train"
    default_global_batch: ClassVar[int] = 16  # where no batch size is given at all

    steps: int = 0
    epochs: float = 1.0
    global_batch_size: int = 0
    micro_batch_size: int = 0
    grad_accum_steps: int = 0
    auto_micro_batch: bool = False
    drop_last: bool = False

    lr: float = 1e-3
    lr_scaling: str = "none"
    base_batch_size: int = 0
    warmup: int = 10
    schedule: str = "cosine"
    weight_decay: float = 0.1
    clip: float = 1.0

    precision: str = "auto"
    compile: bool = False
    deterministic: bool = False
    seed: int = 1

    eval_every: int = 25
    eval_samples: int = 256
    log_every: int = 10
    sample_prompts: tuple[str, ...] = ()
    sample_tokens: int = 40
    on_nan: str = "stop"
    on_bad_row: str = "stop"

    save_every: int = 0
    keep_last: int = 2
    checkpoint_dir: str = ""
    resume: str = "auto"
    time_margin: float = 0.0
    save_path: str = ""
    push_to_hub: str = ""
    tensorboard: bool = False
    wandb: str = ""


def check(config: Any, world_size: int) -> None:
    """Refuse a value, or batch sizes, that cannot be, in one line (status 2)."""
    for key, choices in CHOICES.items():
        value = getattr(config, key, None)
        if value is not None and value not in choices:
            raise WorkerError(f"{key}={value}{nearest(value, choices)}: choose one of {', '.join(choices)}", status=2)
    for key, least in LEAST.items():
        value = getattr(config, key, least)
        if value < least:
            raise WorkerError(f"{key} must be at least {least}, got {value}", status=2)
    for key in ("lr", "epochs"):
        value = getattr(config, key)
        if not (value > 0 and math.isfinite(value)):
            raise WorkerError(f"{key} must be above 0, got {value}", status=2)
    if config.epochs > 1e6:
        raise WorkerError(f"epochs must be at most a million, got {config.epochs}", status=2)
    for key in ("weight_decay", "clip", "time_margin"):
        value = getattr(config, key)
        if not (value >= 0 and math.isfinite(value)):
            raise WorkerError(f"{key} must be 0 or more, got {value}", status=2)
    if config.lr_scaling != "none" and not config.base_batch_size:
        raise WorkerError(
            f"lr_scaling={config.lr_scaling} needs base_batch_size: the global batch size that lr={config.lr:g} is for",
            status=2,
        )
    if config.base_batch_size and config.lr_scaling == "none":
        raise WorkerError("base_batch_size is for lr_scaling=linear or sqrt: set that too, or leave it out", status=2)
    for prompt in config.sample_prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise WorkerError(f"sample_prompts: {prompt!a:.60} is not UTF-8 text", status=2) from None
    asked = (config.global_batch_size, config.micro_batch_size, config.grad_accum_steps)
    solve(*asked, world_size, config.default_global_batch)
