"""How long this rank works in a step, without waiting for other ranks.

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
