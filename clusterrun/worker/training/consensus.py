"""What the ranks agree on: small sums and one rank's word, over the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist

from ..distenv import DistEnv, RunEnv


def broadcast(value: Any, group: Any = None) -> Any:
    """Give rank 0's value (JSON; tuples become lists) to every rank of an open process group.

    torch's own collectives for objects unpickle what the network brings, and a pickle can run any code.
    """
    device = "cuda" if torch_dist.get_backend(group) == "nccl" else "cpu"
    text = json.dumps(value).encode()
    size = torch.tensor([len(text)], device=device)
    torch_dist.broadcast(size, 0, group=group)
    box = torch.empty(int(size.item()), dtype=torch.uint8, device=device)
    if torch_dist.get_rank(group) == 0:
        box.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    torch_dist.broadcast(box, 0, group=group)
    return json.loads(bytes(box.cpu().numpy()))


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
        """Give rank 0's value (JSON) to every rank."""
        return value if self._group is None else broadcast(value, self._group)

    def close(self) -> None:
        """Close the group."""
        if self._group is not None:
            torch_dist.destroy_process_group(self._group)
