"""Why a job waits, where it stands or how it ended, as lines: what ``clusterrun why`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from clusterrun.job import Outcome
from clusterrun.states import RunState
from clusterrun.states_shown import handle, state_row

Named = Sequence[tuple[str, Sequence[str]]]


def explain(cluster: Any, state: RunState) -> list[str]:
    """Which job and its state, then the explanation, each fact named once; an error of ours passes through."""
    _, name, word, *_ = state_row(state)
    named = [("job", [f"{handle(state)}  {name}"]), ("state", [word]), *_why(cluster, state)]
    return [f"{'' if n else name:>9}  {line}" for name, lines in named for n, line in enumerate(lines)]


def _why(cluster: Any, state: RunState) -> Named:
    job = state.status
    if job.state == "PENDING":
        scheduler = cluster.scheduler(state.record.scheduler if state.record else "slurm")
        told: Named = import_module("clusterrun.waiting").explain(scheduler, state).facts()
    elif job.outcome is Outcome.RUNNING:
        told = [("here", import_module("clusterrun.waiting").running(state))]
    else:
        told = import_module("clusterrun.diagnose").explain(cluster, state).facts()
    return told
