"""Loss, speed and memory since the last row of metrics."""

from __future__ import annotations

import time

import torch

from . import memory
from .consensus import Consensus


class Throughput:
    """Sums over the steps since the last row. Losses stay on the device, so that no step waits for them.

    `step_s` is the mean time of a step in seconds, as measured for the last row.
    """

    def __init__(self, device: torch.device) -> None:
        self.step_s = 0.0
        self._device = device
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._steps = self._losses = self._tokens = 0
        self._data_wait_s = 0.0
        self._began = self._data_wait_began = time.monotonic()
        self._cpu_began = time.process_time()

    def begin_step(self) -> None:
        """Begin a step. The time of evaluating and saving after the last row is left out."""
        self._data_wait_began = time.monotonic()
        if self._steps == 0:
            self._began, self._cpu_began = self._data_wait_began, time.process_time()

    def data_ready(self) -> None:
        """Count the time since `begin_step` as waiting for data."""
        self._data_wait_s += time.monotonic() - self._data_wait_began

    def add_step(self, local_loss: torch.Tensor | None, tokens: int) -> None:
        """Add a step: this rank's part of its mean loss (None if skipped), and the number of tokens of all ranks."""
        if local_loss is not None:
            self._loss += local_loss
            self._losses += 1
        self._tokens += tokens
        self._steps += 1

    def take(self, consensus: Consensus, flops_per_token: float | None, peak: float | None) -> dict[str, float | None]:
        """Return the means over these steps and ranks, and reset the sums.

        `peak` is one device's FLOP/s. Times are in seconds, memory in GiB.
        """
        total = consensus.sum([self._loss.item()])[0]  # item() waits for the device: measure the time after it
        seconds = time.monotonic() - self._began
        speed = self._tokens / seconds
        self.step_s = seconds / self._steps
        row = {
            "loss": total / self._losses if self._losses else None,
            "tokens_per_second": speed,
            "mfu": speed / consensus.world_size * flops_per_token / peak if flops_per_token and peak else None,
            "step_s": self.step_s,
            "cores_used": (time.process_time() - self._cpu_began) / seconds,
            "data_wait_s": self._data_wait_s / self._steps,
            "memory_gib": memory.peak_bytes(self._device) / memory.GIB,
        }
        self._loss.zero_()
        self._steps = self._losses = self._tokens = 0
        self._data_wait_s = 0.0
        return row
