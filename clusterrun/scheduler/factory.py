"""The schedulers that a shell can reach: Slurm, where it is configured for one, and this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterrun.errors import NoScheduler, NoSuchJob
from clusterrun.job import LOCAL, JobId
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.scheduler.slurm.client import SlurmScheduler, detect
from clusterrun.scheduler.slurm.scontrol import ClusterFacts


class Reach:
    """Each scheduler, made when it is first asked for; ``state`` is the user's state folder.

    With ``sparing`` accounting is asked once a minute.
    """

    def __init__(self, environ: Mapping[str, str], state: Path, *, sparing: bool = False) -> None:
        self._environ, self._state, self._sparing = environ, state, sparing
        self._schedulers: dict[str, Scheduler] = {}
        self._facts: ClusterFacts | None = None
        self._facts_asked = False

    def facts(self) -> ClusterFacts | None:
        """The Slurm cluster this shell is configured for, None where there is none."""
        if not self._facts_asked:
            self._facts, self._facts_asked = detect(self._environ, self._state), True
        return self._facts

    def scheduler(self, name: str) -> Scheduler:
        """The scheduler of that name (``slurm``, ``local``, ``auto``); raises NoScheduler."""
        if name == "auto":
            name = "slurm" if self.facts() is not None else LOCAL
        if name not in self._schedulers:
            self._schedulers[name] = self._local() if name == LOCAL else self._slurm()
        return self._schedulers[name]

    def slurm_for(self, ids: Sequence[JobId]) -> Scheduler:
        """Slurm, where it may know jobs that have no record; raises NoSuchJob."""
        local = next((i for i in ids if i.is_local), None)
        if local or self.facts() is None:
            raise NoSuchJob(f"no such job: {local or ids[0]}", hint="`clusterrun list --all` shows what is known here")
        return self.scheduler("slurm")

    def may_know(self, job: JobId) -> bool:
        """Whether there is a Slurm here to ask about a job: that of its cluster, where the id names one."""
        return not job.is_local and self.facts() is not None and job.cluster in ("", self.scheduler("slurm").cluster)

    def has_gpus(self, scheduler: Scheduler | None) -> bool | None:
        """Whether a scheduler has GPUs to give; None for a Slurm that is not at hand, and where it is not known."""
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
                "there is no Slurm here: sbatch is not on PATH, or no configuration answers",
                hint="log in to a node of the cluster, set SLURM_CONF, or use --scheduler local",
            )
        slurm = SlurmScheduler(facts, self._environ, cache=self._state)
        return Sparing(slurm) if self._sparing else slurm


#: Seconds between two questions to accounting.
PAUSE = 60.0
#: Seconds between two questions to the scheduler while jobs are waited for: at first, and after growing by half a time.
FIRST, LONGEST = 3.0, 30.0


class Sparing:
    """Another scheduler, but for its ``account``: within the minute the last answer stands."""

    def __init__(self, scheduler: Scheduler, now: Callable[[], float] = time.monotonic) -> None:
        self._scheduler, self._now = scheduler, now
        self._at, self._ids, self._past = -PAUSE, frozenset[JobId](), Answer()

    def account(self, ids: Sequence[JobId], since: int) -> Answer:
        """As of the last minute; not complete where other ids were asked for then."""
        if self._now() - self._at >= PAUSE:
            self._at, self._ids = self._now(), frozenset(ids)
            self._past = self._scheduler.account(ids, since)
        elif not self._ids.issuperset(ids):
            return Answer(self._past.jobs, complete=False, note="accounting is asked once a minute")
        return self._past

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)
