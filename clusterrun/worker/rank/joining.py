"""Bring all ranks of a run together, without a process group: the facts of each rank, the plan, and the table of ranks.

Nothing here imports torch: a rank of a command needs its stores only (rendezvous.load_stores).
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from typing import Any

from ...base.errors import WorkerError
from ...run_folder import ends
from ..node.interfaces import is_loopback, is_own, route_interface
from ..node.log import say
from . import barriers, launched
from .distenv import STAGED, DistEnv, RunEnv
from .versions import digest_packages, find_packages, find_versions

#: What start.json has of each rank, besides its device.
ENTRY = ("rank", "local_rank", "node_rank", "node", "host", "pid", "task", "python", "torch", "nccl", "driver",
         "packages", "machine", "cores")  # fmt: skip

CHOSEN = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # set by the user
SHOWN = 40  # ranks in the log's table


def rank_facts(dist: DistEnv, visible: int = 0, device: int | None = None, uuid: str | None = None) -> dict[str, Any]:
    """Return what this rank posts at the join barrier: its place, its versions, and its GPU, if any.

    `visible` counts the GPUs that this process sees, `device` is the rank's own among them.
    """
    return {
        "rank": dist.rank,
        "local_rank": dist.local_rank,
        "node_rank": dist.node_rank,
        "node": dist.node,
        "host": dist.host,
        "pid": os.getpid(),
        "task": dist.task,
        "visible": visible,
        "device": device,
        "uuid": uuid,
        **find_versions(),
        # of one rank per node: all have the same
        **({} if dist.local_rank else {"packages": digest_packages(find_packages())}),
        "machine": _boot_id(),
        "cores": os.cpu_count(),
        **launched.facts(dist),
    }


def meet(dist: DistEnv, run: RunEnv, facts: dict[str, Any]) -> tuple[dict[str, Any], barriers.SealedStore | None]:
    """Wait for all ranks, and return the plan (barriers.join) and the run's store; raises WorkerError.

    A single rank waits for nobody and needs no store.
    """
    if run.world_size not in (None, dist.world_size):
        raise WorkerError(
            f"the run's world size is {run.world_size}, but the world size in the environment ({dist.source})"
            f" is {dist.world_size}"
        )
    board = None
    if dist.world_size == 1:
        plan = barriers.make_plan([facts]) | launched.agree([facts]) | {"ranks": [facts]}
    else:
        board = barriers.connect(dist, run, run.join_timeout)
        plan = barriers.join(board, dist, run, facts, launched.agree)
    launched.keep(plan)
    if not facts["visible"] or plan["device_type"] != "cuda":
        os.environ.setdefault("ACCELERATE_USE_CPU", "1")  # else accelerate makes N single processes of N ranks
    return plan, board


def announce(plan: dict[str, Any], run: RunEnv) -> None:
    """Print the table of ranks, and write start.json, which maps log labels to ranks and nodes. Rank 0 calls it."""
    on_cuda = plan["device_type"] == "cuda"
    ranks = [_entry(rank, on_cuda) for rank in plan["ranks"]]
    if plan["notice"]:
        print(f"clusterrun: {plan['notice']}")
    kind = "MULTI_GPU" if on_cuda else "MULTI_CPU"
    print(f"Distributed environment: {kind if len(ranks) > 1 else 'NO'}")
    print(f"Number of processes: {len(ranks)}")
    print(f"Number of GPUs: {len(ranks) * on_cuda}")
    _print_table(ranks)
    if staged := os.environ.get(STAGED):
        print(staged)
    sys.stdout.flush()
    if run.attempt_dir is not None:
        try:
            ends.write_start(run.attempt_dir, "nccl" if on_cuda else "gloo", ranks[0]["torch"], ranks)
            ends.write_packages(run.attempt_dir, find_packages())
        except OSError as error:
            say(f"cannot write start.json: {error}")


def _entry(rank: dict[str, Any], on_cuda: bool) -> dict[str, Any]:
    return {key: rank[key] for key in ENTRY if key in rank} | {"device": f"cuda:{rank['device']}" if on_cuda else "cpu"}


def _print_table(ranks: list[dict[str, Any]]) -> None:
    width = max(4, *(len(rank["node"]) for rank in ranks[:SHOWN]))
    print(f"rank  {'node':<{width}}  device")
    for rank in ranks[:SHOWN]:
        print(f"{rank['rank']:>4}  {rank['node']:<{width}}  {rank['device']}")
    if len(ranks) > SHOWN:
        print(f"and {len(ranks) - SHOWN} more; start.json lists all ranks")


def _boot_id() -> str:
    """Return an id that all nodes on one machine share, as those of a simulated cluster do."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


def choose_gloo_interface(dist: DistEnv, run: RunEnv) -> None:
    """Set GLOO_SOCKET_IFNAME to the interface to the other nodes if gloo's default cannot work.

    gloo listens on the address that the host's own name has. Other nodes cannot connect if that is a loopback address
    (127.0.1.1 on Debian). The same holds for an address that this host does not have: gloo then listens on loopback.
    """
    if dist.master is None or dist.world_size == 1 or any(os.environ.get(name) for name in CHOSEN):
        return
    try:
        own = socket.gethostbyname(socket.gethostname())
    except OSError:
        own = "127.0.0.1"
    if is_own(own) and not is_loopback(own):
        return
    if name := route_interface([dist.master[0], *run.node_names]):
        os.environ["GLOO_SOCKET_IFNAME"] = name
