"""What the ranks agree on: small sums and one rank's word, over the CPU."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist

from ..distenv import DistEnv, RunEnv


class Agreement:
    """Small sums over all ranks on the CPU, in a group of their own so that a GPU's queue is never waited for."""

    def __init__(self, dist: DistEnv, run: RunEnv) -> None:
        self._group = None
        self.world_size = dist.world_size
        if dist.world_size > 1:
            self._group = torch_dist.new_group(backend="gloo", timeout=timedelta(seconds=run.pg_timeout))

    def sum(self, values: list[float]) -> list[float]:
        """Add up over the ranks; exact for counts below 2**53."""
        return self.begin(values)()

    def begin(self, values: list[float]) -> Callable[[], list[float]]:
        """Begin to add up over the ranks; what is returned waits for the sums. Every rank begins them in one order."""
        if self._group is None:
            return lambda: values
        tensor = torch.tensor(values, dtype=torch.float64)
        under_way = torch_dist.all_reduce(tensor, group=self._group, async_op=True)

        def sums() -> list[float]:
            under_way.wait()
            return tensor.tolist()

        return sums

    def word(self, value: Any) -> Any:
        """Give rank 0's value (anything that pickles) to every rank."""
        if self._group is None:
            return value
        box = [value]
        torch_dist.broadcast_object_list(box, 0, group=self._group)
        return box[0]

    def close(self) -> None:
        """Close the group."""
        if self._group is not None:
            torch_dist.destroy_process_group(self._group)
