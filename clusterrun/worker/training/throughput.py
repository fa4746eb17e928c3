"""Loss, speed and memory since the last row of metrics."""

from __future__ import annotations

import time

import torch

from . import memory
from .busy import BusyTimes
from .consensus import Consensus


class Throughput:
    """Sums over the steps since the last row. Losses stay on the device, so that no step waits for them.

    `step_s` is the mean time of a step in seconds, as measured for the last row. `busy` has this rank's share of it.
    """

    def __init__(self, device: torch.device, busy: BusyTimes, trained_s: float | None = 0.0) -> None:
        """`trained_s` are the seconds of the steps before the first one, None if they are not known."""
        self.step_s = 0.0
        self.busy = busy
        self._trained_s = trained_s
        self._device = device
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._steps = self._losses = self._tokens = 0
        self._data_wait_s = 0.0
        self._began = self._step_began = time.monotonic()
        self._step_data_s = 0.0
        self._cpu_began = time.process_time()

    def begin_step(self) -> None:
        """Begin a step. The time of evaluating and saving after the last row is left out."""
        self._step_began = time.monotonic()
        if self._steps == 0:
            self._began, self._cpu_began = self._step_began, time.process_time()

    def data_ready(self) -> None:
        """Count the time since `begin_step` as waiting for data."""
        self._step_data_s = time.monotonic() - self._step_began
        self._data_wait_s += self._step_data_s

    def add_step(self, local_loss: torch.Tensor | None, tokens: int) -> None:
        """Add a step: this rank's part of its mean loss (None if skipped), and the number of tokens of all ranks."""
        if local_loss is not None:
            self._loss += local_loss
            self._losses += 1
        self._tokens += tokens
        self._steps += 1

    def end_step(self) -> None:
        """End a step, after the optimizer's."""
        self.busy.add_step(time.monotonic() - self._step_began, self._step_data_s)

    @property
    def trained_s(self) -> float | None:
        """Seconds of all steps that led to this one, without evaluating and saving; None if they are not known.

        A step that a restart repeats counts once.
        """
        if self._trained_s is None:
            return None
        return self._trained_s + (time.monotonic() - self._began if self._steps else 0.0)

    def take(self, consensus: Consensus, flops_per_token: float | None, peak: float | None) -> dict[str, float | None]:
        """Return the means over these steps and ranks, and reset the sums.

        `peak` is one device's FLOP/s. Times are in seconds, memory in GiB.
        """
        total = consensus.sum([self._loss.item()])[0]  # item() waits for the device: measure the time after it
        seconds = time.monotonic() - self._began
        if self._trained_s is not None:
            self._trained_s += seconds
        speed = self._tokens / seconds
        self.step_s = seconds / self._steps
        row = {
            "loss": total / self._losses if self._losses else None,
            "tokens_per_second": speed,
            "mfu": speed / consensus.world_size * flops_per_token / peak if flops_per_token and peak else None,
            "step_s": self.step_s,
            "trained_s": self._trained_s,
            "cores_used": (time.process_time() - self._cpu_began) / seconds,
            "data_wait_s": self._data_wait_s / self._steps,
            "memory_gib": memory.peak_bytes(self._device) / memory.GIB,
        }
        self._loss.zero_()
        self._steps = self._losses = self._tokens = 0
        self._data_wait_s = 0.0
        return row
