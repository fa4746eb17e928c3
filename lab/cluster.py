"""`Lab`: bring a cluster up, take it down, and break it on purpose."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from lab import claims, net, procs, query
from lab.daemons import PROGRAMS, make_daemons
from lab.errors import LabError
from lab.folder import write_folder
from lab.install import available
from lab.spec import LabSpec


class Lab(LabSpec):
    """A Slurm cluster on this machine; `with Lab(name="test") as lab:` brings it up and takes it down."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._daemons: dict[str, procs.Daemon] = {}

    @classmethod
    def attach(cls, name: str = "dev") -> Lab:
        """Return the running lab of this name."""
        path = cls(name=name).folder / "lab.json"
        if name not in claims.claims() or not path.exists():
            raise LabError(f"lab {name} is not up; python -m lab up --name {name}")
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    # --- up and down --------------------------------------------------------------------------------------------

    def up(self) -> Self:
        """Bring the lab up and wait until all nodes are idle; a lab that is up with the same settings is left alone."""
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

    def __enter__(self) -> Self:
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
        """Return whether all daemons run, the controller answers and every node is idle or runs jobs."""
        if not net.exists(self.claim, self.node_names) or any(d.state != "running" for d in self.daemons.values()):
            return False
        return query.nodes_fit(self)

    def _start(self) -> None:
        self._claim = claims.take(self.name, self.folder, self.owner)
        write_folder(self)
        net.create(self._claim, self.node_names)
        # slurmctld of 24.11 looks up the name of each client and holds a lock meanwhile: where a name server drops one
        # query of a burst, every command waits five seconds.
        login = {f"{self.name}-login": self._claim.gateway}
        net.write_hosts(self.name, login | {node: self.address(node) for node in self.node_names})
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
        self.wait_idle()

    def _clear(self) -> None:
        """Remove everything of a lab of this name, even if only parts of it are left."""
        claim = claims.claims().get(self.name)
        if self.folder.exists() and (self.folder.is_symlink() or self.folder.stat().st_uid != os.geteuid()):
            raise LabError(f"{self.folder} belongs to another user: remove it first")
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

    def on_node(self, node: str, argv: Sequence[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in the node's network, as if logged in there (the host name stays this machine's)."""
        self.node_number(node)
        return self.run(["nsenter", f"--net={net.NETNS / node}", *argv], **kwargs)

    @property
    def daemons(self) -> dict[str, procs.Daemon]:
        """All daemons by name: munged, slurmctld, perhaps mariadbd and slurmdbd, and each slurmd by its node's name."""
        if not self._daemons:
            self._daemons = make_daemons(self)
        return self._daemons

    def daemon(self, name: str) -> procs.Daemon:
        """Return the daemon of this name; a slurmd goes by its node's name."""
        if name not in self.daemons:
            raise LabError(f"lab {self.name} has no daemon {name!r}; it has {', '.join(self.daemons)}")
        return self.daemons[name]

    def job(self, job_id: str | int) -> dict[str, str]:
        """Return the job's fields as `scontrol show job -o` prints them (an array's first task); empty when unknown."""
        return query.find_job(self, str(job_id))

    def wait_job(self, job_id: str | int, *states: str, timeout: float = 120.0) -> dict[str, str]:
        """Wait until the job is in one of these states, and return its fields."""
        return query.wait_job(self, str(job_id), states, timeout)

    def node_states(self) -> dict[str, str]:
        """Each node's state as sinfo prints it; `*` at the end means that it does not respond."""
        return query.node_states(self)

    def wait_idle(self, timeout: float = 180.0) -> None:
        """Wait until there is no job and every node is idle."""
        query.wait_idle(self, timeout)

    def forget_ended(self, timeout: float = 120.0) -> None:
        """Make slurmctld forget each job that has ended, as it does by itself after ten minutes."""
        query.forget_ended(self, timeout)

    def reset(self, timeout: float = 180.0) -> None:
        """Repair what was broken and end all jobs, as if the lab had just come up (job ids keep counting)."""
        query.reset(self, self.daemons, timeout)

    def cut_link(self, node: str) -> None:
        """Pull the node's cable."""
        net.cut(self.claim, self.node_number(node))

    def restore_link(self, node: str, wake: bool = True) -> None:
        """Put the node's cable back, at full speed; `wake` makes its slurmd register at once."""
        query.restore_link(self, self.daemon(node), wake)

    def slow_link(self, node: str, rate: str = "1mbit") -> None:
        """Limit the node's link to a rate, as tc writes it (1mbit, 500kbit), both ways."""
        net.slow(self.claim, self.node_number(node), node, rate)


def clear_orphans() -> None:
    """Take down each lab whose owner, such as a test session that was killed, is gone."""
    for claim in claims.claims().values():
        if claim.orphaned:
            with contextlib.suppress(LabError):  # a lab that does not go down must not block another
                Lab(name=claim.name).down()
