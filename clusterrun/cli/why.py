"""``why``: why a job waits, what a running one is at, what ended one that is over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from clusterrun.cli.options import json_option
from clusterrun.cluster import Cluster
from clusterrun.errors import RequestError, SchedulerError
from clusterrun.job import JobStatus, Outcome
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import handle
from clusterrun.terminal.ui import Ui
from clusterrun.terminal.units import first_few
from clusterrun.why import pending

Named = list[tuple[str, Sequence[str]]]


@click.command()
@click.argument("job_ids", nargs=-1, metavar="JOBID...")
@click.option("--logs", metavar="DIR", help="Look for the first cause in a folder of logs, of whatever tool.")
@json_option
def why(job_ids: tuple[str, ...], logs: str | None, as_json: bool) -> None:
    """Why a job waits, what a running one is at, or what first went wrong in one that is over.

    \b
      clusterrun why 123          any job that you may see, an array's task (123_4), a local job (L1)
      clusterrun why --logs logs/

    Exit 0 whatever is found, 3 where Slurm does not answer, 4 where there is no such job.
    """
    ui = Ui("why", as_json=as_json)
    if bool(job_ids) == (logs is not None):
        raise RequestError("give job ids, or --logs DIR", hint="clusterrun why --help")
    if logs is not None:
        _logs(ui, Path(logs))
        return
    cluster = Cluster(tell=ui.note)
    kinds = _kinds(cluster.status(job_ids))
    told, silence = [], None
    for state, like in kinds:
        try:
            told.append(_one(cluster, state, like, _array(state, kinds, job_ids)))
        except SchedulerError as error:
            silence = silence or error
    if silence and (as_json or not told):
        raise silence
    ui.data([data for data, _ in told])
    for number, (_, named) in enumerate(told):
        ui.say(*([""] if number else []))
        ui.facts(named)
    if silence:  # what could be told of the others is told
        raise silence


def _kinds(states: Sequence[RunState]) -> list[tuple[RunState, list[str]]]:
    """One job for each array, state and reason, and the ids of its other tasks there: there may be thousands.

    Jobs in the order in which they were asked for; of an array the tasks that failed first, those that are done last.
    """
    found: dict[tuple[str, ...], tuple[RunState, list[str]]] = {}
    for state in states:
        job = state.status
        alone = "" if job.id.task is not None else handle(state)
        first = found.setdefault((job.id.base, alone, job.state, job.reason), (state, []))
        if first[0] is not state:
            first[1].append(str(job.id))
    order = list(dict.fromkeys(state.status.id.base for state in states))
    return sorted(found.values(), key=lambda kind: (order.index(kind[0].status.id.base), _urgency(kind[0].status)))


def _urgency(job: JobStatus) -> int:
    """How soon one wants to know of it: 0 for what failed, 1 for another end that is not a good one."""
    if job.outcome is Outcome.RUNNING:
        return 2 if job.state == "PENDING" else 3
    return {Outcome.FAILED: 0, Outcome.DONE: 4}.get(job.outcome, 1)


def _array(state: RunState, kinds: Sequence[tuple[RunState, list[str]]], typed: Sequence[str]) -> str:
    """The array that was asked about where all its tasks wait alike, so that what helps one helps all; else nothing."""
    base = state.status.id.base
    return base if base in typed and sum(one.status.id.base == base for one, _ in kinds) == 1 else ""


def _one(cluster: Cluster, state: RunState, like: Sequence[str], array: str) -> tuple[dict[str, Any], Named]:
    """What is known of one job: for ``--json``, and as named facts."""
    job, run = state.status, state.record
    kind, data, named = _look(cluster, state, array)
    name = run.name if run else job.name
    head: Named = [("job", [f"{handle(state)}  {name}"]), ("state", [_standing(state, data.get("exit_status"))])]
    head += [("alike", [first_few(list(like))])] if like else []
    facts = {
        "job_id": str(job.id) if run is None or run.job_id is not None else None,
        "run_id": run.run_id if run else None,
        "name": name,
        "state": job.state,
        "reason": job.reason,
        "outcome": job.outcome.value,
        "alike": list(like),
        "kind": kind,
        kind: data,
    }
    return facts, [*head, *named]


def _look(cluster: Cluster, state: RunState, array: str) -> tuple[str, dict[str, Any], Named]:
    job, run = state.status, state.record
    if job.state == "PENDING":
        found = pending.explain(cluster.scheduler(run.scheduler if run else "slurm"), state, array=array)
        return "waiting", found.json(), found.facts()
    if job.outcome is Outcome.RUNNING:
        lines = pending.running(state)
        return "running", {"lines": lines}, [("here", lines)]
    from clusterrun.why import ended  # and not above: a job that waits needs none of it

    diagnosis = ended.explain(cluster, state)
    return "ended", diagnosis.json(), diagnosis.facts()


def _standing(state: RunState, first: int | None) -> str:
    """A job's state, with its exit status; ``first`` is the one of the rank that failed first, where that is known."""
    job = state.status
    status = f", exit status {job.exit_status}" if job.exit_status else ""
    if job.exit_status and first and first != job.exit_status:
        status = f", exit status {first} (the rank that failed first; Slurm has the highest, {job.exit_status})"
    return f"{job.state}{status}" + (f"  ({state.note})" if state.note else "")


def _logs(ui: Ui, folder: Path) -> None:
    from clusterrun.why import ended

    diagnosis = ended.explain_logs(folder)
    ui.data([{"logs": str(folder), "kind": "ended", "ended": diagnosis.json()}])
    ui.facts(diagnosis.facts())
