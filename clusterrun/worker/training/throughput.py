"""What was measured since the last row of metrics."""

from __future__ import annotations

import time

import torch

from . import memory
from .consensus import Agreement


class Window:
    """Sums over the steps since the last row; losses stay on the device, so that no step waits for them.

    `step_s` is the mean time of a step in seconds, as last measured.
    """

    def __init__(self, device: torch.device) -> None:
        self.step_s = 0.0
        self._device = device
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._steps = self._losses = self._tokens = 0
        self._waited = 0.0
        self._began = self._asked = time.monotonic()

    def resume(self) -> None:
        """Begin a step; evaluating and saving since the last row are not training time."""
        self._asked = time.monotonic()
        if self._steps == 0:
            self._began = self._asked

    def data_is_here(self) -> None:
        """Count the time since `resume` as waiting for data."""
        self._waited += time.monotonic() - self._asked

    def add(self, local: torch.Tensor | None, tokens: int) -> None:
        """Add a step: this rank's part of its mean loss (None: it was skipped), and the useful tokens of all ranks."""
        if local is not None:
            self._loss += local
            self._losses += 1
        self._tokens += tokens
        self._steps += 1

    def close(self, agreement: Agreement, flops_per_token: float | None, peak: float | None) -> dict[str, float | None]:
        """Return the figures of these steps, means over steps and ranks, and begin anew.

        `peak` is one device's FLOP/s. Times are in seconds, memory in GiB.
        """
        total = agreement.sum([self._loss.item()])[0]  # item() waits for the device: now the time is true
        seconds = time.monotonic() - self._began
        speed = self._tokens / seconds
        self.step_s = seconds / self._steps
        row = {
            "loss": total / self._losses if self._losses else None,
            "tokens_per_second": speed,
            "mfu": speed / agreement.world_size * flops_per_token / peak if flops_per_token and peak else None,
            "step_s": self.step_s,
            "data_wait_s": self._waited / self._steps,
            "memory_gib": memory.peak_bytes(self._device) / memory.GIB,
        }
        self._loss.zero_()
        self._steps = self._losses = self._tokens = 0
        self._waited = 0.0
        return row
