"""The worker's process group: open it after the join barrier, check it with one sum, and write start.json."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as torch_dist

from . import barriers, end_records, launched
from .distenv import DistEnv, RunEnv
from .errors import WorkerError
from .versions import find_versions

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

SIOCGIFADDR = 0x8915
#: What start.json has of each rank, besides its device.
ENTRY = ("rank", "local_rank", "node_rank", "node", "host", "pid", "task", "python", "torch", "nccl", "driver",
         "machine", "cores")  # fmt: skip


def start(dist: DistEnv, run: RunEnv, cuda_check: bool = True) -> torch.device:
    """Bring all ranks together and return this rank's device; raises WorkerError.

    Then the default process group is open (unless there is one rank without a store) and checked, and rank 0 has
    printed the table of ranks and written start.json. With `cuda_check=False` the group is on gloo even if the job has
    GPUs: for a child process that needs all of the GPU's memory.
    """
    if run.world_size not in (None, dist.world_size):
        raise WorkerError(
            f"the run has {run.world_size} ranks, but this step has {dist.world_size} ({dist.source} variables)"
        )
    facts = _facts(dist, ask_uuid=cuda_check)
    if dist.master is None:
        plan = barriers.make_plan([facts])
    else:
        board = barriers.connect(dist, run, run.join_timeout)
        plan = barriers.join(board, dist, facts, run.join_timeout, run.node_names)
    launched.agree(plan["ranks"])
    on_cuda = plan["device_type"] == "cuda"
    device = torch.device("cuda", facts["device"]) if on_cuda else torch.device("cpu")
    if not torch.cuda.is_available() or not on_cuda:
        os.environ.setdefault("ACCELERATE_USE_CPU", "1")  # else accelerate makes N single processes of N ranks
    if dist.master is not None:
        _open(board.store, dist, run, device if cuda_check else torch.device("cpu"))
    if dist.rank == 0:
        _announce(plan, run)
    return device


def stop() -> None:
    """Close the process group, if open, and undo what opening it changed in the interpreter."""
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()
    sys.excepthook = (
        sys.__excepthook__
    )  # torch's hook prefixes tracebacks with the rank; the user's process group sets it again


def set_default_timeout(seconds: float) -> None:
    """Set the timeout of process groups that the user's script opens without one.

    torch reads these two module constants if init_process_group() gets no timeout. A torch without them keeps its own
    default.
    """
    c10d = torch_dist.distributed_c10d
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        if isinstance(getattr(c10d, name, None), timedelta):
            setattr(c10d, name, timedelta(seconds=seconds))


def gloo_interface(hosts: list[str]) -> str | None:
    """Return the network interface to the first of `hosts` that is not on loopback; None for gloo's default.

    gloo listens on the address of the host's own name. If that is a loopback address (on Debian 127.0.1.1), other
    nodes cannot connect.
    """
    try:
        own = socket.gethostbyname(socket.gethostname())
    except OSError:
        own = "127.0.0.1"
    return route_interface(hosts) if ipaddress.ip_address(own).is_loopback else None


def route_interface(hosts: list[str]) -> str | None:
    """Return the network interface to the first of `hosts` that is not on loopback, or None."""
    for host in hosts:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, 9))  # sends nothing: the kernel only chooses the route
                local = probe.getsockname()[0]
        except OSError:
            continue
        if not ipaddress.ip_address(local).is_loopback:
            return _interface_of(local)
    return None


def address_of(interface: str) -> str | None:
    """Return the IPv4 address of a network interface, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(reply[20:24])


def _interface_of(address: str) -> str | None:
    return next((name for _, name in socket.if_nameindex() if address_of(name) == address), None)


def _facts(dist: DistEnv, ask_uuid: bool) -> dict[str, Any]:
    """Return what this rank posts at the join barrier. Device indexes count within CUDA_VISIBLE_DEVICES."""
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = dist.local_rank if dist.local_rank < visible else (0 if visible == 1 else None)
    uuid = None
    if device is not None:
        # one visible device may be the same for all tasks: its UUID shows it. Asking for the UUID opens CUDA; if that
        # is not wanted, or torch is old, use the list of visible devices
        properties = torch.cuda.get_device_properties(device) if ask_uuid else None
        uuid = str(getattr(properties, "uuid", "")) or f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}#{device}"
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
        "machine": _boot_id(),
        "cores": os.cpu_count(),
        **launched.facts(dist),
    }


def _boot_id() -> str:
    """Return an id that all nodes on one machine share, as those of a simulated cluster do."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


def _open(store: Store, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif dist.world_size > 1 and not os.environ.get("GLOO_SOCKET_IFNAME") and not os.environ.get("NCCL_SOCKET_IFNAME"):
        assert dist.master is not None
        name = gloo_interface([dist.master[0], *run.node_names])
        if name:
            os.environ["GLOO_SOCKET_IFNAME"] = name
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
        raise WorkerError(f"the process group is broken: the sum of all ranks is {total.item()}, expected {expected}")


def _announce(plan: dict[str, Any], run: RunEnv) -> None:
    """Print the table of ranks, and write start.json, which maps log labels to ranks and nodes."""
    on_cuda = plan["device_type"] == "cuda"
    ranks = [
        {k: r[k] for k in ENTRY if k in r} | {"device": f"cuda:{r['device']}" if on_cuda else "cpu"}
        for r in plan["ranks"]
    ]
    if plan["notice"]:
        print(f"clusterrun: {plan['notice']}")
    kind = "NO" if len(ranks) == 1 else "MULTI_GPU" if on_cuda else "MULTI_CPU"
    print(f"Distributed environment: {kind}")
    print(f"Number of processes: {len(ranks)}")
    print(f"Number of GPUs: {len(ranks) if on_cuda else 0}")
    width = max(4, *(len(r["node"]) for r in ranks))
    print(f"rank  {'node':<{width}}  device")
    for r in ranks:
        print(f"{r['rank']:>4}  {r['node']:<{width}}  {r['device']}")
    sys.stdout.flush()
    if run.attempt_dir is not None:
        try:
            end_records.write_start(run.attempt_dir, "nccl" if on_cuda else "gloo", torch.__version__, ranks)
        except OSError as error:
            print(f"clusterrun: cannot write start.json: {error}", file=sys.stderr)
