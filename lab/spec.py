"""`LabSpec`: a lab's size, names and addresses, and Slurm's commands in it."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import claims, net, releases
from lab.errors import LabError

# Variables that bend Slurm's commands, or make them believe they run inside another job.
_SCRUB = ("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_")


@dataclass
class LabSpec:
    """The size, names, paths and addresses of one lab, and its Slurm commands; it starts and stops nothing.

    name: tells labs apart. The nodes of the lab `dev` are node1, node2, …; those of a lab NAME are NAME-node1, ….
    settings: slurm.conf values by key, over the lab's own; an empty value removes a line.
    owner: pid of a process the lab must not outlive; the next `up` of any lab clears it away once that one is gone.
    slurm: the version, such as 24.11; empty for this machine's own. CLUSTERRUN_LAB_SLURM is the default.
    """

    name: str = "dev"
    nodes: int = 4
    gpus: int = 4
    accounting: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    cpus: int = 16
    memory_mb: int = 64000
    gpu_type: str = ""
    owner: int | None = None
    slurm: str = field(default_factory=releases.default)

    def __post_init__(self) -> None:
        self.slurm = releases.checked(self.slurm)
        if not claims.NAME.fullmatch(self.name):
            raise LabError(f"lab name {self.name!r}: use up to 16 of a-z, 0-9 and single dashes, a letter first")
        if not 1 <= self.nodes <= 64 or not 0 <= self.gpus <= 64:
            raise LabError(f"a lab has 1 to 64 nodes of 0 to 64 GPUs, not {self.nodes} of {self.gpus}")
        self._claim: claims.Claim | None = None

    @property
    def folder(self) -> Path:
        """Where the lab keeps everything; short, as socket paths have a length limit."""
        return Path(f"/tmp/clusterrun-lab-{self.name}")

    @property
    def conf(self) -> Path:
        """The lab's slurm.conf."""
        return self.folder / "slurm.conf"

    @property
    def local_disk(self) -> Path:
        """A folder of 16 MB that each node has for itself; processes outside the nodes see it empty."""
        return self.folder / "local"

    @property
    def node_names(self) -> list[str]:
        """The nodes' names, which resolve on this machine and on the nodes."""
        return [f"{self.node_prefix}{number}" for number in range(1, self.nodes + 1)]

    @property
    def node_prefix(self) -> str:
        """The part of a node's name before the number."""
        return "node" if self.name == "dev" else f"{self.name}-node"

    @property
    def cluster_name(self) -> str:
        """Slurm's name for the cluster; it becomes part of table names, so it has no dash."""
        return self.name.replace("-", "_")

    @property
    def claim(self) -> claims.Claim:
        """The lab's index on this machine; raises LabError while the lab is down."""
        if self._claim is None:
            self._claim = claims.claims().get(self.name)
        if self._claim is None:
            raise LabError(f"lab {self.name} is not up; python -m lab up --name {self.name}")
        return self._claim

    @property
    def env(self) -> dict[str, str]:
        """The variables that make Slurm's commands talk to this lab, to be merged into an environment."""
        return {"SLURM_CONF": str(self.conf), "CLUSTERRUN_LAB": self.name}

    def address(self, node: str) -> str:
        """Return the node's address on the bridge."""
        return net.address(self.claim, self.node_number(node))

    def node_number(self, node: str) -> int:
        """Return the node's number, from 1; raise LabError where the lab has no such node."""
        if node not in self.node_names:
            raise LabError(f"lab {self.name} has no node {node!r}; it has {', '.join(self.node_names)}")
        return self.node_names.index(node) + 1

    @property
    def spec(self) -> dict[str, Any]:
        """The arguments that make this lab again, as lab.json keeps them."""
        keys = ("name", "nodes", "gpus", "accounting", "settings", "cpus", "memory_mb", "gpu_type", "slurm")
        return {key: getattr(self, key) for key in keys}

    def full_env(self) -> dict[str, str]:
        """Return this process's environment without what would bend Slurm's commands, plus the lab's own variables."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_SCRUB)}
        path = releases.search_path(self.slurm, f"{kept.get('PATH', '')}:{releases.SEARCH_PATH}")
        return {**kept, "PATH": path, **self.env}

    def run(self, argv: Sequence[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """`subprocess.run` in the lab's environment: text (any bytes), output captured, 60 s; `env` is added to it.

        `user="nobody"` runs the command as that user and nobody else: their own group, none of root's.
        """
        decoded = {"text": True, "errors": "surrogateescape"} if kwargs.get("text", True) else {}
        options = {**decoded, "timeout": 60, "check": False, **kwargs}
        env = {**self.full_env(), **(kwargs.get("env") or {})}
        if user := kwargs.get("user"):
            entry = pwd.getpwnam(user)
            options = {"group": entry.pw_gid, "extra_groups": [], "cwd": "/tmp", **options}
            env.update(USER=user, LOGNAME=user, HOME=entry.pw_dir)
        if not {"stdout", "stderr", "capture_output"} & kwargs.keys():
            options["capture_output"] = True
        return subprocess.run(list(argv), **{**options, "env": env})  # noqa: PLW1510
