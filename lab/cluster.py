"""`Lab`: bring a cluster up, take it down, run commands in it, and break it on purpose."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from lab import claims, net, procs, query, releases
from lab.daemons import PROGRAMS, make_daemons
from lab.errors import LabError
from lab.folder import write_folder
from lab.install import available

# Variables that bend Slurm's commands, or make them believe they run inside another job.
_SCRUB = ("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_")


@dataclass
class Lab:
    """A Slurm cluster on this machine; `with Lab(name="test") as lab:` brings it up and takes it down.

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
        self._daemons: dict[str, procs.Daemon] = {}

    # --- what it is ---------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where the lab keeps everything; short, as socket paths have a length limit."""
        return Path(f"/tmp/clusterrun-lab-{self.name}")

    @property
    def conf(self) -> Path:
        """The lab's slurm.conf."""
        return self.folder / "slurm.conf"

    @property
    def node_names(self) -> list[str]:
        """The nodes' names, which resolve on this machine and on the nodes."""
        return [f"{self.node_prefix}{number}" for number in range(1, self.nodes + 1)]

    @property
    def node_prefix(self) -> str:
        """What stands before the number in a node's name."""
        return "node" if self.name == "dev" else f"{self.name}-node"

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
        """The node's address on the bridge."""
        return net.address(self.claim, self._number(node))

    def _number(self, node: str) -> int:
        if node not in self.node_names:
            raise LabError(f"lab {self.name} has no node {node!r}; it has {', '.join(self.node_names)}")
        return self.node_names.index(node) + 1

    @property
    def spec(self) -> dict[str, Any]:
        """What the lab was asked to be, as lab.json keeps it."""
        keys = ("name", "nodes", "gpus", "accounting", "settings", "cpus", "memory_mb", "gpu_type", "slurm")
        return {key: getattr(self, key) for key in keys}

    @classmethod
    def attach(cls, name: str = "dev") -> Lab:
        """The running lab of this name."""
        path = cls(name=name).folder / "lab.json"
        if name not in claims.claims() or not path.exists():
            raise LabError(f"lab {name} is not up; python -m lab up --name {name}")
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    # --- up and down --------------------------------------------------------------------------------------------

    def up(self) -> Lab:
        """Bring the lab up and wait until all nodes are idle; one that stands as asked is left alone."""
        if reason := available(self.slurm):
            raise LabError(reason)
        clear_orphans()
        with claims.lock(f"lab-{self.name}"):
            if self._standing():
                return self
            self._clear()
            if others := net.namespaces(self.node_prefix):
                raise LabError(f"network namespaces {', '.join(others)} exist and are not this lab's")
            try:
                self._start()
            except BaseException:  # also Ctrl-C: a half of a lab helps nobody
                self._clear()
                raise
        return self

    def down(self) -> None:
        """End every process of the lab and remove its networks, names and folder; a lab that is down stays down."""
        with claims.lock(f"lab-{self.name}"):
            self._clear()

    def __enter__(self) -> Lab:
        self.owner = self.owner or os.getpid()  # should this process be killed, the next `up` clears the lab away
        return self.up()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.down()

    def _standing(self) -> bool:
        try:
            running = Lab.attach(self.name)
            same = running.spec == self.spec
            up = same and running.healthy()
        except (LabError, OSError, ValueError, TypeError):
            return False
        if up:
            self._claim = claims.take(self.name, self.folder, self.owner)
        return up

    def healthy(self) -> bool:
        """True when all daemons run, the controller answers and every node is fit for work."""
        if not net.exists(self.claim, self.node_names) or any(d.state != "running" for d in self.daemons.values()):
            return False
        return query.nodes_fit(self)

    def _start(self) -> None:
        self._claim = claims.take(self.name, self.folder, self.owner)
        write_folder(self)
        net.create(self._claim, self.node_names)
        net.write_hosts(self.name, {node: self.address(node) for node in self.node_names})
        # Each daemon starts as early as it can: the database and munge together, then slurmdbd, which slurmctld
        # needs for its registration, then all slurmd at once.
        self.daemon("munged").start(wait=None)
        if self.accounting:
            self.daemon("mariadbd").start()
        self.daemon("munged").wait_ready()
        if self.accounting:
            self.daemon("slurmdbd").start(wait=60)
            done = self.run(["sacctmgr", "-i", "add", "cluster", self.cluster_name])
            if done.returncode != 0:
                log = procs.tail(self.daemon("slurmdbd").log)
                raise LabError(f"sacctmgr add cluster: {done.stderr.strip()}\n{log}")
        self.daemon("slurmctld").start()
        for node in self.node_names:
            self.daemon(node).start(wait=None)
        for node in self.node_names:
            self.daemon(node).wait_ready()
        self.wait_idle(30)

    @property
    def cluster_name(self) -> str:
        """Slurm's name for the cluster; it becomes part of table names, so it has no dash."""
        return self.name.replace("-", "_")

    def _clear(self) -> None:
        """Remove everything of a lab of this name, however little of it is left and whoever started it."""
        claim = claims.claims().get(self.name)
        if self.folder.exists() and (self.folder.is_symlink() or self.folder.stat().st_uid != os.geteuid()):
            raise LabError(f"{self.folder} is not ours: remove it first")
        nodes = net.namespaces(self.node_prefix) if claim else []
        victims = {pid for path in self.folder.glob("pid/*") if (pid := procs.pid_of_file(path))}
        victims.update(procs.daemons_of_folder(self.folder, PROGRAMS))
        for node in nodes:
            if inode := net.inode(node):
                victims.update(procs.pids_in_netns(inode))
        if left := procs.kill_pids(victims):
            raise LabError(f"lab {self.name}: processes {left} do not die")
        if claim:
            net.remove(claim, nodes)
        net.write_hosts(self.name, {})
        shutil.rmtree(self.folder, ignore_errors=True)
        claims.release(self.name)
        self._claim, self._daemons = None, {}

    # --- use ----------------------------------------------------------------------------------------------------

    def full_env(self) -> dict[str, str]:
        """This process's environment without what would bend Slurm's commands, plus the lab's own variables."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_SCRUB)}
        path = releases.search_path(self.slurm, f"{kept.get('PATH', '')}:{releases.SEARCH_PATH}")
        return {**kept, "PATH": path, **self.env}

    def run(self, argv: Sequence[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """`subprocess.run` in the lab's environment: text (any bytes), output captured, 60 s; `env` is added to it.

        `user="nobody"` runs the command as that user and nobody else: their own group, none of root's.
        """
        options = {"text": True, "errors": "surrogateescape", "timeout": 60, "check": False, **kwargs}
        env = {**self.full_env(), **(kwargs.get("env") or {})}
        if user := kwargs.get("user"):
            entry = pwd.getpwnam(user)
            options = {"group": entry.pw_gid, "extra_groups": [], "cwd": "/tmp", **options}
            env.update(USER=user, LOGNAME=user, HOME=entry.pw_dir)
        if not {"stdout", "stderr", "capture_output"} & kwargs.keys():
            options["capture_output"] = True
        return subprocess.run(list(argv), **{**options, "env": env})  # noqa: PLW1510

    def on_node(self, node: str, argv: Sequence[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in the node's network, as if logged in there (the host name stays this machine's)."""
        self._number(node)
        return self.run(["nsenter", f"--net={net.NETNS / node}", *argv], **kwargs)

    @property
    def daemons(self) -> dict[str, procs.Daemon]:
        """All daemons by name: munged, slurmctld, perhaps mariadbd and slurmdbd, and each slurmd by its node's name."""
        if not self._daemons:
            self._daemons = make_daemons(self)
        return self._daemons

    def daemon(self, name: str) -> procs.Daemon:
        """The daemon of this name; a slurmd goes by its node's name."""
        if name not in self.daemons:
            raise LabError(f"lab {self.name} has no daemon {name!r}; it has {', '.join(self.daemons)}")
        return self.daemons[name]

    def job(self, job_id: str | int) -> dict[str, str]:
        """The job's fields as `scontrol show job -o` prints them (an array's first task); empty when unknown."""
        return query.job(self, str(job_id))

    def wait_job(self, job_id: str | int, *states: str, timeout: float = 30.0) -> dict[str, str]:
        """Wait until the job is in one of these states, and return its fields."""
        return query.wait_job(self, str(job_id), states, timeout)

    def node_states(self) -> dict[str, str]:
        """Each node's state as sinfo prints it; `*` at the end means that it does not answer."""
        return query.node_states(self)

    def wait_idle(self, timeout: float = 60.0) -> None:
        """Wait until there is no job and every node is idle."""
        query.wait_idle(self, timeout)

    def reset(self, timeout: float = 60.0) -> None:
        """Mend all that was broken and end all jobs, as if the lab had just come up (job ids go on)."""
        query.reset(self, timeout)

    def cut_link(self, node: str) -> None:
        """Pull the node's cable."""
        net.cut(self.claim, self._number(node))

    def restore_link(self, node: str, wake: bool = True) -> None:
        """Put the node's cable back in, at full speed.

        Slurm looks after a node that is down only about once a minute; with `wake` the slurmd registers at once.
        """
        if net.restore(self.claim, self._number(node), node) and wake:
            self.daemon(node).hangup()

    def slow_link(self, node: str, rate: str = "1mbit") -> None:
        """Limit the node's link to a rate, as tc writes it (1mbit, 500kbit), both ways."""
        net.slow(self.claim, self._number(node), node, rate)


def clear_orphans() -> None:
    """Take down each lab whose owner, such as a test session that was killed, is gone."""
    for claim in claims.claims().values():
        if claim.orphaned:
            with contextlib.suppress(LabError):  # one that resists must not keep another from coming up
                Lab(name=claim.name).down()
