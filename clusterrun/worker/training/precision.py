"""The number format of the forward pass; weights, gradients and optimizer stay in float32."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Precision:
    """A resolved precision: "bf16", "fp16" or "fp32" on one type of device ("cuda" or "cpu").

    Without `has_autocast` the model's own weights are in that precision while it runs (FSDP2).
    """

    name: str
    device_type: str
    has_autocast: bool = True

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context for a forward pass."""
        if self.name == "fp32" or not self.has_autocast:
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, torch.bfloat16 if self.name == "bf16" else torch.float16)

    def scaler(self) -> torch.amp.GradScaler:
        """Return a gradient scaler, enabled for fp16 only."""
        return torch.amp.GradScaler(self.device_type, enabled=self.name == "fp16")


def choose(setting: str, device: torch.device) -> Precision:
    """Return the precision of a setting; "auto" is bf16 if the GPU supports it, else fp16; fp32 on a CPU."""
    if setting == "auto":
        if device.type == "cuda":
            setting = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        else:
            setting = "fp32"
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for matrices in float32
    return Precision(setting, device.type)
