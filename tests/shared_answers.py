"""Windows of mine that ask Slurm, on a clock that is set by hand: what one has heard, another may take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clusterrun.job import JobId
from clusterrun.scheduler.slurm import cache
from clusterrun.scheduler.slurm.cache import QueueCache
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.scheduler.slurm.scontrol import ClusterFacts
from clusterrun.scheduler.slurm.squeue import _SQUEUE
from clusterrun.scheduler.slurm.values import SEP
from clusterrun.system import shell

FACTS = ClusterFacts("lab", accounting=False, gpus=False)
LONG_AGO = 0.0


class Window:
    """One of my windows: Slurm as it asks it, on a clock that is set by hand; `asked` counts its questions."""

    def __init__(self, state: Path, clock: Callable[[], float], facts: ClusterFacts = FACTS) -> None:
        self.slurm = SlurmScheduler(facts, {}, run=self._run, cache=state)
        self.wall = 0.0
        self.slurm.kept = self.kept = QueueCache(
            state / "clusters", "default", self.slurm.cluster, clock=clock, wall=lambda: clock() + self.wall
        )
        self.asked, self.answer, self.status = 0, "", 0
        self.waited: list[float] = []
        self.while_waiting: Callable[[], object] = lambda: None

    def says(self, **states: str) -> Window:
        self.answer = "".join(queue_row(job.removeprefix("j"), state) for job, state in states.items())
        return self

    def ask(self, *ids: str, since: float = LONG_AGO) -> tuple[list[str], float]:
        """The states that are told, and their age."""
        answer, age = cache.cached_query(self.slurm, [JobId.parse(i) for i in ids], since, sleep=self._sleep)
        return [job.state for job in answer.jobs], age

    def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.while_waiting()

    def _run(self, argv: Sequence[str], **_: Any) -> shell.Completed:
        self.asked += 1
        return shell.Completed(self.status, self.answer, "slurm_load_jobs error: no" if self.status else "")


def queue_row(job: str, state: str) -> str:
    cells = {"%i": job, "%A": job, "%T": state, "%j": "x", "%D": "1", "%M": "1:00"}
    return SEP.join(cells.get(column, "") for column in _SQUEUE) + "\n"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
