"""Why a job waits, where it stands or how it ended, as lines: what ``clusterrun why`` prints."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from clusterrun.job import Outcome
from clusterrun.states import RunState
from clusterrun.states_shown import handle, state_row


def explain(cluster: Any, state: RunState) -> list[str]:
    """Which job and its state, then the explanation; an error of ours passes through."""
    _, name, word, *_ = state_row(state)
    return [f"      job  {handle(state)}  {name}", f"    state  {word}", *_why(cluster, state)]


def _why(cluster: Any, state: RunState) -> list[str]:
    job = state.status
    if job.state == "PENDING":
        scheduler = cluster.scheduler(state.record.scheduler if state.record else "slurm")
        return list(import_module("clusterrun.waiting").explain(scheduler, state).lines())
    if job.outcome is Outcome.RUNNING:
        return list(import_module("clusterrun.waiting").running(state))
    return list(import_module("clusterrun.diagnose").explain(cluster, state).lines())
