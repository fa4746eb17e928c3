"""Create the schedulers that a shell can use: Slurm, if the shell is configured for a cluster, and this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterrun.base.errors import NoScheduler, NoSuchJob
from clusterrun.base.job import LOCAL, JobId
from clusterrun.scheduler import ClusterFacts, Scheduler, SlurmCommands
from clusterrun.scheduler.slurm.client import SlurmScheduler, detect


class SchedulerFactory:
    """Creates each scheduler on first use. ``state`` is the user's state folder.

    Accounting is queried at most every ``accounting_interval`` seconds. ``scheduler`` replaces the one of its name.
    """

    def __init__(
        self, environ: Mapping[str, str], state: Path, *, accounting_interval: float = 0.0,
        scheduler: Scheduler | None = None,
    ) -> None:  # fmt: skip
        self._environ, self._state, self._accounting_interval = environ, state, accounting_interval
        self._schedulers = {scheduler.name: scheduler} if scheduler else {}
        self._facts: ClusterFacts | None = None
        self._has_facts = scheduler is not None
        if scheduler is not None and scheduler.name != LOCAL:
            self._facts = ClusterFacts(scheduler.cluster, accounting=True, gpus=False)

    def facts(self) -> ClusterFacts | None:
        """Return the Slurm cluster that this shell is configured for, None if there is none."""
        if not self._has_facts:
            self._facts, self._has_facts = detect(self._environ, self._state), True
        return self._facts

    def scheduler(self, name: str) -> Scheduler:
        """Return the scheduler of that name (``slurm``, ``local``, ``auto``). Raises NoScheduler."""
        if name == "auto":
            name = "slurm" if self.facts() is not None else LOCAL
        if name not in self._schedulers:
            self._schedulers[name] = self._local() if name == LOCAL else self._slurm()
        return self._schedulers[name]

    def slurm(self) -> SlurmCommands:
        """Return Slurm's own commands. Raises NoScheduler."""
        slurm = self.scheduler("slurm").slurm
        if slurm is None:
            raise NoScheduler("this command needs Slurm")
        return slurm

    def slurm_for(self, ids: Sequence[JobId]) -> Scheduler:
        """Return the scheduler to query about external jobs. Raises NoSuchJob if it cannot be Slurm."""
        local = next((i for i in ids if i.is_local), None)
        if local or self.facts() is None:
            raise NoSuchJob(f"no such job: {local or ids[0]}", hint="`clusterrun list --all` shows all known jobs")
        return self.scheduler("slurm")

    def may_know(self, job: JobId) -> bool:
        """Return whether there is a Slurm here to query about a job: the one of its cluster, if the id names one."""
        return not job.is_local and self.facts() is not None and job.cluster in ("", self.scheduler("slurm").cluster)

    def has_gpus(self, scheduler: Scheduler | None) -> bool | None:
        """Return whether a scheduler has GPUs; None if unknown. A ``scheduler`` of None means Slurm."""
        if scheduler is not None and scheduler.name == LOCAL:
            from clusterrun.scheduler.local import devices

            return bool(devices.visible(self._environ))
        facts = self.facts()
        return facts.gpus if facts is not None else None

    def _local(self) -> Scheduler:
        from clusterrun.scheduler.local.client import LocalScheduler

        return LocalScheduler(self._state, self._environ)

    def _slurm(self) -> Scheduler:
        facts = self.facts()
        if facts is None:
            raise NoScheduler(
                "Slurm is not available: sbatch is not on PATH, or no Slurm configuration was found",
                hint="log in to a node of the cluster, set SLURM_CONF, or use --scheduler local",
            )
        return SlurmScheduler(facts, self._environ, cache=self._state, accounting_interval=self._accounting_interval)
