"""Which number format the forward pass runs in; weights, gradients and optimizer stay in float32."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Precision:
    """A resolved precision: "bf16", "fp16" or "fp32" on one type of device ("cuda" or "cpu")."""

    name: str
    device_type: str

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context for a forward pass."""
        if self.name == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, torch.bfloat16 if self.name == "bf16" else torch.float16)

    def scaler(self) -> torch.amp.GradScaler:
        """A gradient scaler: fp16 alone needs one, for the others it passes everything through."""
        return torch.amp.GradScaler(self.device_type, enabled=self.name == "fp16")


def choose(asked: str, device: torch.device) -> Precision:
    """Resolve "auto": bf16 where the GPU has it, fp16 on older ones, fp32 on a CPU (where 16 bits are slower)."""
    if asked == "auto":
        if device.type == "cuda":
            asked = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        else:
            asked = "fp32"
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for what stays in float32
    return Precision(asked, device.type)
