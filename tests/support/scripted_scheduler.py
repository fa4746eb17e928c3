"""A scheduler with scripted answers, and the state that a run has by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterrun.base.job import JobId, JobStatus, outcome_of
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.scheduler import Answer, Cancelled, Submission
from clusterrun.state import reconcile
from clusterrun.state.reconcile import RunState
from tests.support.run_records import AT

NOW = AT + 1000.0


class Scripted:
    """A scheduler that returns prepared answers and records each query."""

    name, cluster, local = "slurm", "lab", None

    def __init__(self, queue: Answer | None = None, past: Answer | None = None) -> None:
        self.queue, self.past = queue or Answer(), past or Answer()
        self.queries: list[str] = []

    def query(self, ids: Sequence[JobId] | None = None) -> Answer:
        self.queries.append("query")
        return self.queue

    def account(self, ids: Sequence[JobId], since: int) -> Answer:
        self.queries.append(f"account {','.join(map(str, ids))}")
        return self.past

    def find(self, token: str, since: int, script: Path) -> Answer:
        raise AssertionError("not for reading")

    def submit(self, submission: Submission) -> JobId:
        raise AssertionError("not for reading")

    def cancel(self, ids: Sequence[JobId]) -> Sequence[Cancelled]:
        raise AssertionError("not for reading")


def row(run: RunRecord, state: str, job: str = "", **more: Any) -> JobStatus:
    status = JobStatus(id=JobId(job or run.submission.job_id), state=state, outcome=outcome_of(state),
                       name=f"{run.name}.{run.submission.token[:8]}", source="squeue")  # fmt: skip
    return replace(status, **more)


def ask(store: Store, run: RunRecord, scheduler: Scripted, now: float = NOW) -> RunState:
    (state,) = reconcile.reconcile(store, scheduler, [run], now=now)
    return state


SILENT = Answer(complete=False, note="squeue: Unable to contact slurm controller")
