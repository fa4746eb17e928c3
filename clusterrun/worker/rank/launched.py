"""A rank that another launcher started (launchers.py): its output, its end, and the variables of the user's code."""

from __future__ import annotations

import importlib
import os
import random
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...base.errors import WorkerError
from ...run_folder.ends import FIRST_FAILURE
from ...run_folder.rank_records import RankSlot
from ..node.local_launcher import die_with_parent
from . import distenv
from .distenv import STORE, DistEnv
from .rendezvous import port_range

OUTPUTS = "CLUSTERRUN_OUTPUTS"  # the launcher's process id, then its two pipes for each local rank
RANKS = "CLUSTERRUN_RANKS_PER_NODE"  # with none: the ranks that the user's program starts on a node
RESTARTS, PORT = "CLUSTERRUN_RESTARTS", "CLUSTERRUN_FREE_PORT"  # what the ranks agree on at the join barrier
USE_STORE = "TORCHELASTIC_USE_AGENT_STORE"
WANDB = ("WANDB_RUN_ID", "WANDB_RESUME")  # W&B continues the run of this id over launches; the user's own settings stay
# set for torchrun's agents; a torchrun in the user's code must not take them
OF_THE_LAUNCHER = ("PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_LOCAL_ADDR", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", STORE)


def adopt(argv: Sequence[str]) -> Sequence[str]:
    """In a rank that a launcher started: write into its pipes, end when it ends, and remove an earlier start's records.

    Return the worker's arguments; deepspeed's `--local_rank=N` becomes the first of the user's code. The kernel kills
    this process with the launcher: torchrun gives each rank a session that no kill of the launcher's group reaches.
    """
    if OUTPUTS not in os.environ:
        return argv
    launcher, *pipes = map(int, os.environ[OUTPUTS].split())
    die_with_parent(launcher)()
    local = int(os.environ.get("LOCAL_RANK") or 0)
    for target, pipe in zip((1, 2), pipes[2 * local :], strict=False):
        descriptor = os.open(f"/proc/{launcher}/fd/{pipe}", os.O_WRONLY)
        os.dup2(descriptor, target)
        os.close(descriptor)
    if folder := os.environ.get("CLUSTERRUN_ATTEMPT_DIR"):
        _clear_records(Path(folder), int(os.environ.get("RANK") or 0), local)
    return _without_local_rank(argv)


def _clear_records(attempt: Path, rank: int, local_rank: int) -> None:
    """Remove what an earlier start of this rank has recorded, if the launcher may have started it again."""
    if not int(os.environ.get("TORCHELASTIC_MAX_RESTARTS") or 0):
        return
    with suppress(OSError):  # then the new end cannot be written either
        RankSlot(attempt, rank, local_rank).clear_end()
    if rank == 0:
        (attempt / FIRST_FAILURE).unlink(missing_ok=True)


def _without_local_rank(argv: Sequence[str]) -> Sequence[str]:
    """Return the worker's arguments with deepspeed's `--local_rank=N` as the first of the user's code."""
    if not argv or not argv[0].startswith("--local_rank="):
        return argv
    flag, mode, *rest = argv
    if mode == "task":
        return [mode, *rest]
    target = rest.index("--") + 2 if "--" in rest[:1] else 1
    return [mode, *rest[:target], flag, *rest[target:]]


def facts(dist: DistEnv) -> dict[str, Any]:
    """Return what this rank adds to its facts at the join barrier; `agree` uses them."""
    port = find_free_port() if dist.rank == 0 else None
    return {"free_port": port, "restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)}


def agree(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what all ranks must have in common, from the facts of all; only rank 0 has these.

    torchrun counts the restarts of each node by itself. The sum is the same on all nodes and grows with every restart.
    """
    return {
        "free_port": ranks[0]["free_port"],
        "restarts": sum(r["restarts"] for r in ranks if r["local_rank"] == 0),
    }


def keep(plan: dict[str, Any]) -> None:
    """Keep what the ranks agreed on, for the variables of the user's code."""
    if "free_port" in plan:
        os.environ[PORT] = str(plan["free_port"])
        os.environ[RESTARTS] = str(plan["restarts"])


def set_variables(dist: DistEnv, run_id: str) -> None:
    """Set the variables of the user's code: torchrun's, or with none those that start one launcher per node."""
    os.environ.pop(OUTPUTS, None)  # only now: a rank may start again (entry.py)
    given = None if STORE in os.environ else os.environ.get(USE_STORE)  # by the user; else by the launcher
    variables = distenv.torch_variables(dist, run_id)
    # a single rank needs no other's store, nor do processes that it starts
    needs_own_store = (dist.master is not None and dist.world_size == 1) or given not in (None, "True")
    if RANKS in os.environ:
        unset(variables)
        variables = _node_variables(dist)
    elif STORE in os.environ:
        unset(OF_THE_LAUNCHER)
        variables["TORCHELASTIC_RESTART_COUNT"] = os.environ[RESTARTS]
        variables["TORCHELASTIC_MAX_RESTARTS"] = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
        # after a restart the run's store holds the keys of the earlier process groups: rank 0 opens one
        needs_own_store |= os.environ[RESTARTS] != "0"
    if needs_own_store and RANKS not in os.environ:
        variables |= own_store()
    os.environ.update(variables if given is None else variables | {USE_STORE: given})
    if dist.rank == 0:
        _continue_wandb(run_id)


def unset(names: Iterable[str]) -> None:
    """Remove variables from the environment."""
    for name in names:
        os.environ.pop(name, None)


def _node_variables(dist: DistEnv) -> dict[str, str]:
    return {
        "NNODES": str(dist.world_size),
        "NODE_RANK": str(dist.rank),
        "NPROC_PER_NODE": os.environ[RANKS],
        "MASTER_ADDR": dist.master[0] if dist.master else "127.0.0.1",
        "MASTER_PORT": os.environ[PORT],
    }


def _continue_wandb(run_id: str) -> None:
    """Let W&B continue one run over the starts of the job, unless the user has chosen its run.

    Rank 0 only: with one id, ranks that log each for itself would write into one W&B run. And only where the job may
    start again: a script that opens several W&B runs would write them into one.
    """
    may_start_again = "CLUSTERRUN_CONTINUES" in os.environ and RANKS not in os.environ
    if may_start_again and os.environ.keys().isdisjoint(WANDB):
        os.environ.update(zip(WANDB, (run_id, "allow"), strict=True))


def own_store() -> dict[str, str]:
    """Return the variables with which torch's rank 0 opens a store, on the port that the ranks agreed on."""
    return {"MASTER_PORT": os.environ.get(PORT) or str(find_free_port()), USE_STORE: "False"}


def limit_store_to_its_port(dist: DistEnv) -> None:
    """Let rank 0 of the user's code open every store but the run's, in this process and in those that it starts.

    TORCHELASTIC_USE_AGENT_STORE tells torch that somebody else has opened the store. A script that sets MASTER_ADDR and
    MASTER_PORT itself, or starts processes that do (torch.multiprocessing.spawn), would wait for it for ever.
    """
    if dist.master is None or os.environ.get(USE_STORE) != "True":
        return
    port = dist.master[1]
    _limit_in_process(port)
    _limit_in_spawned(str(port))


def _limit_in_process(run_port: int) -> None:
    rendezvous = importlib.import_module("torch.distributed.rendezvous")  # the package has a function of this name
    create = getattr(rendezvous, "_create_c10d_store", None)
    if create is None:
        return

    def create_store(hostname: str, port: int, *args: Any, **options: Any) -> Any:
        if port == run_port:
            return create(hostname, port, *args, **options)
        with _environ({USE_STORE: "False"}):
            return create(hostname, port, *args, **options)

    rendezvous._create_c10d_store = create_store  # type: ignore[attr-defined]


def _limit_in_spawned(run_port: str) -> None:
    """Give processes of multiprocessing's "spawn" the port that the ranks agreed on; they may set another."""
    from multiprocessing import popen_spawn_posix

    start = popen_spawn_posix.Popen._launch  # type: ignore[attr-defined]

    def launch(process: Any, what: Any) -> None:
        changed = own_store() if os.environ.get("MASTER_PORT") == run_port else {USE_STORE: "False"}
        with _environ(changed):
            start(process, what)

    popen_spawn_posix.Popen._launch = launch  # type: ignore[attr-defined]


@contextmanager
def _environ(changed: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def find_free_port() -> int:
    """Return a port of this node that nobody listens on, below the ephemeral range; it is not held."""
    ports = port_range()
    for port in random.SystemRandom().choices(ports, k=1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise WorkerError("no free port on this node")
