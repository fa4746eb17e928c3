"""Processes of one user that share the queue cache, on a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clusterrun.base.job import JobId
from clusterrun.scheduler import ClusterFacts
from clusterrun.scheduler.slurm.cache import QueueCache
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.scheduler.slurm.squeue import _JOB_FORMATS
from clusterrun.scheduler.slurm.values import SEP
from clusterrun.system import shell

FACTS = ClusterFacts("lab", accounting=False, gpus=False)
LONG_AGO = 0.0


class Window:
    """One process: its Slurm scheduler, on a clock that the test sets; `asked` counts its commands."""

    def __init__(self, state: Path, clock: Callable[[], float], facts: ClusterFacts = FACTS) -> None:
        self.slurm = SlurmScheduler(facts, {}, run=self._run, cache=state)
        self.wall = 0.0
        self.slurm.queue_cache = self.cache = QueueCache(
            state / "clusters", "default", self.slurm.cluster, clock=clock, wall=lambda: clock() + self.wall
        )
        self.asked, self.answer, self.status = 0, "", 0
        self.waited: list[float] = []
        self.while_waiting: Callable[[], object] = lambda: None

    def says(self, **states: str) -> Window:
        self.answer = "".join(queue_row(job.removeprefix("j"), state) for job, state in states.items())
        return self

    def ask(self, *ids: str, since: float = LONG_AGO) -> tuple[list[str], float]:
        """Return the job states of the answer, and its age."""
        answer, age = self.slurm.cached_query([JobId.parse(i) for i in ids], since, sleep=self._sleep)
        return [job.state for job in answer.jobs], age

    def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.while_waiting()

    def _run(self, argv: Sequence[str], **_: Any) -> shell.Completed:
        self.asked += 1
        return shell.Completed(self.status, self.answer, "slurm_load_jobs error: no" if self.status else "")


def queue_row(job: str, state: str) -> str:
    cells = {"%i": job, "%A": job, "%T": state, "%j": "x", "%D": "1", "%M": "1:00"}
    return SEP.join(cells.get(column, "") for column in _JOB_FORMATS) + "\n"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
