"""The worker's process group: open it after the join barrier, check it with one sum, and write start.json."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as torch_dist

from ...base.errors import WorkerError
from .distenv import DistEnv, RunEnv
from .joining import announce, choose_gloo_interface, meet, rank_facts

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


def start(dist: DistEnv, run: RunEnv) -> torch.device:
    """Bring all ranks together and return this rank's device; raises WorkerError.

    Then the default process group is open and checked (a single rank has none), and rank 0 has printed the table of
    ranks and written start.json.
    """
    facts = find_facts(dist)
    plan, board = meet(dist, run, facts)
    device = torch.device("cuda", facts["device"]) if plan["device_type"] == "cuda" else torch.device("cpu")
    if board is not None:
        _open(board.store, dist, run, device)
    if dist.rank == 0:
        announce(plan, run)
    return device


def stop() -> None:
    """Close the process group, if open, and undo what opening it changed in the interpreter."""
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()
    # torch's hook prefixes tracebacks with the rank; the user's process group sets it again
    sys.excepthook = sys.__excepthook__


def set_default_timeout(seconds: float) -> None:
    """Set the timeout of process groups that the user's script opens without one.

    torch reads these two module constants if init_process_group() gets no timeout. A torch without them keeps its own
    default.
    """
    c10d = torch_dist.distributed_c10d
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        if isinstance(getattr(c10d, name, None), timedelta):
            setattr(c10d, name, timedelta(seconds=seconds))


def find_device(dist: DistEnv) -> tuple[int, int | None]:
    """Return the number of GPUs that this process sees, and which of them is its own."""
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if visible == 1:
        return 1, 0
    return visible, dist.local_rank if dist.local_rank < visible else None


def find_facts(dist: DistEnv, ask_uuid: bool = True) -> dict[str, Any]:
    """Return what this rank posts at the join barrier. Device indexes count within CUDA_VISIBLE_DEVICES.

    Without `ask_uuid` CUDA is not opened: a child process needs all of the GPU's memory.
    """
    visible, device = find_device(dist)
    uuid = None
    if device is not None:
        # one visible device may be the same for all tasks: its UUID shows it. Asking for the UUID opens CUDA; if that
        # is not wanted, or torch is old, use the list of visible devices
        properties = torch.cuda.get_device_properties(device) if ask_uuid else None
        uuid = str(getattr(properties, "uuid", "")) or f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}#{device}"
    return rank_facts(dist, visible, device, uuid)


def _open(store: Store, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        choose_gloo_interface(dist, run)
    torch_dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=dist.rank,
        world_size=dist.world_size,
        timeout=timedelta(seconds=run.pg_timeout),
    )
    total = torch.tensor([dist.rank], dtype=torch.int64, device=device)
    torch_dist.all_reduce(total)
    expected = dist.world_size * (dist.world_size - 1) // 2
    if total.item() != expected:
        raise WorkerError(
            f"the process group is broken: an all-reduce (sum) of the rank numbers gave {total.item()},"
            f" expected {expected}"
        )
