"""Small sums and broadcasts between the ranks, on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist

from ..rank.distenv import DistEnv, RunEnv


def broadcast(value: Any, group: Any = None) -> Any:
    """Return rank 0's value (JSON; tuples become lists) on every rank of an open process group.

    torch's own collectives for objects use pickle, which can run any code that the network brings.
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


class Consensus:
    """Sums and broadcasts over all ranks, in a gloo group of their own: they never wait for the GPU."""

    def __init__(self, dist: DistEnv, run: RunEnv) -> None:
        self._group = None
        self.rank, self.world_size = dist.rank, dist.world_size
        if dist.world_size > 1:
            self._group = torch_dist.new_group(backend="gloo", timeout=timedelta(seconds=run.pg_timeout))

    def sum(self, values: list[float]) -> list[float]:
        """Return the sums over the ranks; exact for counts below 2**53."""
        return self.begin(values)()

    def begin(self, values: list[float]) -> Callable[[], list[float]]:
        """Start summing over the ranks; return a function that waits for the sums. Same order of calls on all ranks."""
        if self._group is None:
            return lambda: values
        tensor = torch.tensor(values, dtype=torch.float64)
        pending = torch_dist.all_reduce(tensor, group=self._group, async_op=True)

        def sums() -> list[float]:
            pending.wait()
            return tensor.tolist()

        return sums

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value (JSON) on every rank."""
        return value if self._group is None else broadcast(value, self._group)

    def gather(self, value: Any) -> list[Any]:
        """Return the values (JSON) of all ranks, in their order, on every rank."""
        if self._group is None:
            return [value]
        text = json.dumps(value).encode()
        lengths = [0.0] * self.world_size
        lengths[self.rank] = len(text)
        longest = int(max(self.sum(lengths)))
        boxes = [torch.empty(longest, dtype=torch.uint8) for _ in lengths]
        mine = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
        torch_dist.all_gather(boxes, mine, group=self._group)
        return [json.loads(bytes(box.numpy())) for box in boxes]

    def close(self) -> None:
        """Close the group."""
        if self._group is not None:
            torch_dist.destroy_process_group(self._group)
