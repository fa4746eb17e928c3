"""The rank and world of this process, from torchrun's variables, Slurm's, or neither."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ...base.errors import WorkerError
from ...base.fields import JOIN_TIMEOUT, PG_TIMEOUT
from ...run_folder import launches

STORE = "CLUSTERRUN_STORE"  # host:port of the run's store in a rank that another launcher started
STAGED = "CLUSTERRUN_STAGED"  # a line on the copies of the environment, for the table of ranks
DEFAULT_PROGRESS_INTERVAL = 10.0
# not after a $, where it is the shell's or OmegaConf's
_NAMES = "local_rank|rank|node_rank|world_size"
PLACEHOLDER = re.compile(rf"(?<!\$)(?<!\$\{{)(?:\{{(\{{(?:{_NAMES})\}})\}}|\{{({_NAMES})\}})")


@dataclass(frozen=True)
class DistEnv:
    """The rank of this process in the job. Counts are of ranks, one rank per process.

    `source` is "torchrun", "slurm" or "single". `task` is the label that srun (or local_launcher.py) puts
    before this process's lines. `master` is the host and port of the run's store, if any.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    node: str
    host: str
    task: int
    source: str
    master: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise WorkerError(
                f"rank {self.rank} is out of range for world size {self.world_size}"
                f", according to the environment ({self.source})"
            )
        if not 0 <= self.local_rank < self.local_world_size:
            raise WorkerError(
                f"local rank {self.local_rank} is out of range for local world size {self.local_world_size}"
                f", according to the environment ({self.source})"
            )
        if self.world_size > 1 and self.master is None:
            raise WorkerError(f"MASTER_ADDR and MASTER_PORT are not set, but the world size is {self.world_size}")


@dataclass(frozen=True)
class RunEnv:
    """The run's environment, set by the batch script: folders (None outside a run), limits in seconds.

    `end_time` is when the time limit ends the job, in seconds since 1970; None if there is none or it is unknown.
    `process_group` is what a run without one gets: a warning (expected), status 1 (required) or nothing (independent).
    `check_gpus` are the GPUs that each node must have if nodes and links are checked before the work; else None.
    `local_main_process_first`: the other ranks of a node wait for it (first_of_node.py).
    `secret` is known to this job's processes only: the token and the secret of this launch.
    """

    run_id: str = "none"
    run_dir: Path | None = None
    attempt_dir: Path | None = None
    world_size: int | None = None
    pg_timeout: float = PG_TIMEOUT
    join_timeout: float = JOIN_TIMEOUT
    progress_interval: float = DEFAULT_PROGRESS_INTERVAL
    end_time: float | None = None
    process_group: str = "expected"
    check_gpus: int | None = None
    local_main_process_first: bool = False
    secret: str = field(default="", repr=False)

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes, in node-rank order, from the supervisor's file; none if it cannot be read."""
        return tuple(launches.nodes_of(self.attempt_dir)) if self.attempt_dir else ()

    @classmethod
    def resolve(cls, environ: Mapping[str, str]) -> RunEnv:
        """Parse the CLUSTERRUN_* variables; an empty one counts as not set."""

        def path(name: str) -> Path | None:
            return Path(environ[name]) if environ.get(name) else None

        return cls(
            run_id=environ.get("CLUSTERRUN_RUN_ID") or "none",
            run_dir=path("CLUSTERRUN_RUN_DIR"),
            attempt_dir=path("CLUSTERRUN_ATTEMPT_DIR"),
            world_size=_integer(environ, "CLUSTERRUN_WORLD_SIZE") if environ.get("CLUSTERRUN_WORLD_SIZE") else None,
            pg_timeout=_seconds(environ, "CLUSTERRUN_PG_TIMEOUT", PG_TIMEOUT),
            join_timeout=_seconds(environ, "CLUSTERRUN_JOIN_TIMEOUT", JOIN_TIMEOUT),
            progress_interval=_seconds(environ, "CLUSTERRUN_PROGRESS_INTERVAL", DEFAULT_PROGRESS_INTERVAL),
            end_time=_moment(environ.get("CLUSTERRUN_END_TIME", "")),
            process_group=environ.get("CLUSTERRUN_PROCESS_GROUP") or "expected",
            check_gpus=_integer(environ, "CLUSTERRUN_CHECK_GPUS") if environ.get("CLUSTERRUN_CHECK_GPUS") else None,
            local_main_process_first=bool(environ.get("CLUSTERRUN_LOCAL_MAIN_PROCESS_FIRST")),
            secret=f"{environ.get('CLUSTERRUN_TOKEN', '')} {environ.get('CLUSTERRUN_SECRET', '')}"
            # torchrun chooses a port for every start of the ranks: they must not meet those of an earlier start
            + (f" {environ.get('MASTER_PORT', '')}" if environ.get(STORE) else ""),
        )


def resolve(environ: Mapping[str, str] | None = None) -> DistEnv:
    """Return this process's rank and world: from torchrun's variables, else Slurm's, else a single process.

    torchrun's variables count only together with TORCHELASTIC_RUN_ID: a RANK left in a shell is common.
    """
    environ = os.environ if environ is None else environ
    host = socket.gethostname()
    node = environ.get("CLUSTERRUN_NODE_NAME") or environ.get("SLURMD_NODENAME") or host
    master = _master(environ)
    if environ.get("TORCHELASTIC_RUN_ID") and environ.get("RANK"):
        rank = _integer(environ, "RANK")
        return DistEnv(
            rank=rank,
            local_rank=_integer(environ, "LOCAL_RANK"),
            world_size=_integer(environ, "WORLD_SIZE"),
            local_world_size=_integer(environ, "LOCAL_WORLD_SIZE"),
            node_rank=_integer(environ, "GROUP_RANK"),
            node=node,
            host=host,
            task=rank if _is_labelled_by_rank(environ) else _integer(environ, "SLURM_PROCID"),
            source="torchrun",
            master=master,
        )
    if environ.get("SLURM_PROCID") and environ.get("SLURM_NTASKS"):
        rank, world_size = _integer(environ, "SLURM_PROCID"), _integer(environ, "SLURM_NTASKS")
        local_rank = _integer(environ, "SLURM_LOCALID")
        local_world_size = _tasks_on_node(environ, _integer(environ, "SLURM_NODEID"), world_size)
        node_rank = rank // local_world_size  # SLURM_NODEID counts by name, also where the ranks have another order
        return DistEnv(rank, local_rank, world_size, local_world_size, node_rank, node, host, rank, "slurm", master)
    return DistEnv(0, 0, 1, 1, 0, node, host, 0, "single", master)


def _is_labelled_by_rank(environ: Mapping[str, str]) -> bool:
    """Whether the label of a line of the log is the rank, as of local_launcher.py and launchers.py, not srun's task."""
    return bool(environ.get("CLUSTERRUN_NODE_NAME") or environ.get(STORE) or not environ.get("SLURM_PROCID"))


def torch_variables(dist: DistEnv, run_id: str) -> dict[str, str]:
    """Return the variables that torchrun sets, and NODE_RANK, so that a script written for torchrun runs unchanged.

    All ranks are clients of the run's store (TORCHELASTIC_USE_AGENT_STORE). A single process without a store gets port
    0: torch then opens a store on a free port.
    """
    variables = {
        "RANK": str(dist.rank),
        "LOCAL_RANK": str(dist.local_rank),
        "WORLD_SIZE": str(dist.world_size),
        "LOCAL_WORLD_SIZE": str(dist.local_world_size),
        "GROUP_RANK": str(dist.node_rank),
        "NODE_RANK": str(dist.node_rank),  # not torchrun's: composer and Lightning read it
        "GROUP_WORLD_SIZE": str(max(1, dist.world_size // dist.local_world_size)),
        "ROLE_RANK": str(dist.rank),
        "ROLE_WORLD_SIZE": str(dist.world_size),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": os.environ.get("CLUSTERRUN_RESTART") or "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
    if dist.master is None:
        return variables | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "TORCHELASTIC_USE_AGENT_STORE": "False"}
    addr, port = dist.master
    return variables | {"MASTER_ADDR": addr, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}


def fill_placeholders(arguments: Sequence[str], dist: DistEnv) -> list[str]:
    """Return the arguments with {rank}, {local_rank}, {node_rank} and {world_size} replaced by this rank's numbers.

    Doubled braces give single ones: `{{rank}}` becomes `{rank}`. Other text in braces, and `${rank}`, stay as they are.
    """
    return [PLACEHOLDER.sub(lambda found: found[1] or str(getattr(dist, found[2])), text) for text in arguments]


def _master(environ: Mapping[str, str]) -> tuple[str, int] | None:
    if environ.get(STORE):
        host, _, port = environ[STORE].rpartition(":")
        return host, _integer({STORE: port}, STORE)
    if not environ.get("MASTER_ADDR") or not environ.get("MASTER_PORT"):
        return None
    return environ["MASTER_ADDR"], _integer(environ, "MASTER_PORT")


def _tasks_on_node(environ: Mapping[str, str], node: int, world_size: int) -> int:
    """Return the ranks on this node, from Slurm's compressed form (`4(x2),3`), else an even share of the world."""
    compressed = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or ""
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", compressed):
        counts += [int(tasks)] * int(times or 1)
    if sum(counts) == world_size and node < len(counts):
        return counts[node]
    return max(1, world_size // int(environ.get("CLUSTERRUN_NODES") or 1))


def _integer(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    try:
        return int(text)
    except ValueError:
        raise WorkerError(f"{name} must be a whole number, got {text!r}") from None


def _moment(text: str) -> float | None:
    """Parse seconds since 1970; None if not a number, as an unknown end time must not stop the job."""
    try:
        return float(text) or None
    except ValueError:
        return None


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e8:
        raise WorkerError(f"{name} must be a positive number of seconds, got {text!r}")
    return seconds
