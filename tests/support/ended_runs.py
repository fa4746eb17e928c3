"""Runs that are over: how they stand, what they left in their logs, and a Slurm of set answers to ask about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterrun.base.job import JobId, JobStatus, outcome_of
from clusterrun.records.run_record import RunRecord
from clusterrun.scheduler import Scheduler
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.scheduler.slurm.scontrol import ClusterFacts
from clusterrun.state.reconcile import RunState
from clusterrun.system.shell import Completed
from tests.support.run_records import AT

#: What rank 1 leaves in err: a traceback of the user's own code.
RAISED = '1: Traceback (most recent call last):\n1:   File "/u/train.py", line 4, in f\n1: ValueError: no\n'


class Slurm:
    """A cluster whose commands answer what they are told to, and are counted."""

    def __init__(
        self,
        answers: Mapping[str, str] | None = None,
        accounting: bool = True,
        refusals: Mapping[str, str] | None = None,
    ) -> None:
        self.answers, self.refusals, self.asked = answers or {}, refusals or {}, list[str]()
        self._slurm = SlurmScheduler(ClusterFacts("lab", accounting, True), {}, run=self._run)

    def scheduler(self, name: str) -> Scheduler:
        return self._slurm

    def _run(self, argv: Sequence[str], **how: Any) -> Completed:
        line = " ".join(argv)
        self.asked.append(line)
        found = next((text for words, text in self.answers.items() if words in line), None)
        refused = next((text for words, text in self.refusals.items() if words in line), "no answer")
        return Completed(0, found, "") if found is not None else Completed(1, "", refused)


def over(
    run: RunRecord | None, state: str = "FAILED", status: int | None = 1, job: str = "101", **more: Any
) -> RunState:
    return RunState(
        run, JobStatus(id=JobId.parse(job), state=state, outcome=outcome_of(state, status), exit_status=status, **more)
    )


def write_logs(run: RunRecord, err: str, job: str = "101") -> None:
    (run.logs / f"train_{job}.err").write_text(err)
    (run.logs / f"train_{job}.out").write_text("")


def ranks_on(*nodes: str) -> dict[str, Any]:
    return {"ranks": [{"rank": rank, "task": rank, "node": node} for rank, node in enumerate(nodes)], "time": AT}
