"""Loss, speed and memory since the last row of metrics, and how long this rank works in a step.

All ranks take the same time for a step, since each waits for the slowest. So what tells a slow rank from the others is
the time that it takes for its own data and for its own forward and backward passes.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import deque
from collections.abc import Iterator

import torch
from torch.nn.parallel import DistributedDataParallel

from . import memory
from .consensus import Consensus

WINDOW = 50  # steps
FEWEST = 20  # steps before a rank can be compared: the first ones compile and allocate
SAMPLED_EVERY = 5  # steps, of the passes; DDP's own 100 is too rare for the window
MS, NS = 1e-3, 1e-9


class BusyTimes:
    """The medians over the last steps, in seconds, of a whole step, of waiting for data, and of computing.

    Computing is one forward and one backward pass of a sampled step, times its micro batches. DDP measures the backward
    pass up to the last gradient, so without the all-reduce; on a GPU with events, which no step waits for.
    """

    def __init__(self, ddp_model: torch.nn.Module, device: torch.device, micro_batches: int) -> None:
        self._ddp = ddp_model if isinstance(ddp_model, DistributedDataParallel) else None
        if self._ddp is not None:
            self._ddp._set_ddp_runtime_logging_sample_rate(SAMPLED_EVERY)  # type: ignore[no-untyped-call]
        self._micro_batches = micro_batches
        self._count = 0
        self._steps = deque[float](maxlen=WINDOW)
        self._data = deque[float](maxlen=WINDOW)
        self._compute = deque[float](maxlen=WINDOW // SAMPLED_EVERY)
        self._forward_s: float | None = None
        self._events: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Measure a forward pass. On a GPU only in the first of some steps: its events are read in the last one."""
        sampled = self._events if self._count % SAMPLED_EVERY == 0 else []
        began = time.monotonic()
        if sampled:
            sampled[0].record()
        yield
        if sampled:
            sampled[1].record()
        self._forward_s = time.monotonic() - began

    def add_step(self, step_s: float, data_s: float) -> None:
        """Add a step that took so many seconds, of which so many for its data."""
        self._count += 1
        self._steps.append(step_s)
        self._data.append(data_s)
        if self._ddp is not None and self._count % SAMPLED_EVERY == SAMPLED_EVERY - 1:
            forward_s = self._forward_s
            if self._events:
                is_done = all(event.query() for event in self._events)  # type: ignore[no-untyped-call]
                forward_s = self._events[0].elapsed_time(self._events[1]) * MS if is_done else None
            backward_ns = self._ddp._get_ddp_logging_data().get("backward_compute_time")  # type: ignore[no-untyped-call]
            if forward_s and backward_ns:
                self._compute.append((forward_s + backward_ns * NS) * self._micro_batches)

    def medians(self) -> dict[str, float]:
        """Return `step_s`, and after some steps of several ranks `data_s` and `compute_s`; empty before the first."""
        steps, data, compute = list(self._steps), list(self._data), list(self._compute)  # another thread calls this
        if not steps:
            return {}
        found = {"step_s": statistics.median(steps)}
        if self._count >= FEWEST and compute:
            found |= {"data_s": statistics.median(data), "compute_s": statistics.median(compute)}
        return {name: round(value, 6) for name, value in found.items()}


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
