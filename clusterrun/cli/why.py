"""``why``: explain why a job is pending, what a running job is doing, or how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from clusterrun.base.errors import RequestError, SchedulerError
from clusterrun.base.job import JobStatus, Outcome
from clusterrun.base.units import first_few
from clusterrun.cli.common.names import LAST, find_targets
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.exec import find_running
from clusterrun.cluster import Cluster
from clusterrun.state.launches import failed_state, held_line
from clusterrun.state.reconcile import RunState, Target
from clusterrun.state.show import handle
from clusterrun.terminal.ui import Ui
from clusterrun.why import pending

Facts = list[tuple[str, Sequence[str]]]


@click.command()
@click.argument("job_ids", nargs=-1, metavar="[JOBID]...")
@click.option("--logs", metavar="DIR", help="Find the first failure in DIR, a folder of logs from any tool.")
@click.option("--stacks", is_flag=True, help="Show the Python stacks of a running job's ranks, read by py-spy.")
@json_option
@click.pass_obj
def why(session: Session, job_ids: tuple[str, ...], logs: str | None, stacks: bool, as_json: bool) -> None:
    """Explain why a job is pending, what a running job is doing, or what first went wrong in an ended job.

    \b
      clusterrun why              your last job from this folder
      clusterrun why 123          any job that you can see; also an array task (123_4), a local job (L1) or a job's name
      clusterrun why --logs logs/
      clusterrun why 123 --stacks what each rank of a running job is doing now

    Exit 0 for any finding, 3 if Slurm is not responding, 4 if there is no such job.
    """
    ui = Ui("why", as_json=as_json)
    if logs is not None and (job_ids or stacks):
        raise RequestError("--logs cannot be combined with a job id or --stacks", hint="clusterrun why --help")
    if logs is not None:
        _logs(ui, Path(logs))
        return
    cluster = session.cluster(ui.note)
    targets = find_targets(cluster, job_ids or (LAST,))
    if stacks:
        _stacks(ui, cluster, targets)
        return
    _explain_all(ui, cluster, targets)


def _explain_all(ui: Ui, cluster: Cluster, targets: Sequence[Target]) -> None:
    """Print the explanation of each job. A silent scheduler is reported after the jobs that could be explained."""
    groups = _group(cluster.status(targets))
    answers, failure = [], None
    for state, alike in groups:
        try:
            answers.append(_explain(cluster, state, alike, _array(state, groups, targets)))
        except SchedulerError as error:
            failure = failure or error
    if failure and (ui.as_json or not answers):
        raise failure
    ui.data([data for data, _ in answers])
    for number, (_, facts) in enumerate(answers):
        ui.say(*[""] * min(number, 1))
        ui.facts(facts)
    if failure:
        raise failure


def _stacks(ui: Ui, cluster: Cluster, targets: Sequence[Target]) -> None:
    if len(targets) > 1:
        raise RequestError("--stacks takes one job", hint=f"clusterrun why {targets[0].text} --stacks")
    from clusterrun.records import progress
    from clusterrun.why import stacks

    state = find_running(cluster, targets[0])
    job, run = state.status.id, state.record
    ranks = progress.ranks(run, job.task) if run is not None else []
    if run is None or not ranks:
        raise RequestError(
            f"no rank of job {job} has recorded its process ID yet" if run else f"job {job} is not a clusterrun job",
            hint=f"clusterrun exec {job} -- ps -ef",
        )
    python = str(run.sources.get("python", ("python3", ""))[0])
    found = stacks.read_stacks(state.status.inner_id, ranks, python, cluster.environ)
    ui.data({"job_id": str(job), "stacks": [stack._asdict() for stack in found]})
    ui.say(*(line for group in stacks.describe(found, len(ranks) - len(found)) for line in group))


def _group(states: Sequence[RunState]) -> list[tuple[RunState, list[str]]]:
    """Return one job for each array, state and reason, and the ids of the other tasks: there may be thousands.

    Jobs keep their order; of an array the failed tasks come first, those that are done last.
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
    """Return the sort key of an array's tasks: 0 for a failed one, 1 for one that ended in another bad way."""
    if job.outcome is Outcome.RUNNING:
        return 2 if job.state == "PENDING" else 3
    return {Outcome.FAILED: 0, Outcome.DONE: 4}.get(job.outcome, 1)


def _array(state: RunState, groups: Sequence[tuple[RunState, list[str]]], typed: Sequence[Target]) -> str:
    """Return the id of an array that was typed and whose tasks all have the same state and reason; else ""."""
    base = state.status.id.base
    is_typed = any(target.text == base for target in typed)
    return base if is_typed and sum(one.status.id.base == base for one, _ in groups) == 1 else ""


def _explain(cluster: Cluster, state: RunState, alike: Sequence[str], array: str) -> tuple[dict[str, Any], Facts]:
    job, run = state.status, state.record
    kind, data, found = _find_cause(cluster, state, array)
    facts: Facts = [
        ("job", [f"{handle(state)}  {state.name}"]),
        ("state", [_state_text(state, data.get("exit_status"))]),
    ]
    facts += [("alike", [first_few(list(alike))])] if alike else []
    as_json = {
        "job_id": None if state.is_unsubmitted else str(job.id),
        "run_id": run.run_id if run else None,
        "name": state.name,
        "state": job.state,
        "reason": job.reason,
        "outcome": job.outcome.value,
        "alike": list(alike),
        "kind": kind,
        kind: data,
    }
    return as_json, [*facts, *found]


def _find_cause(cluster: Cluster, state: RunState, array: str) -> tuple[str, dict[str, Any], Facts]:
    job = state.status
    if job.state == "PENDING":
        found = pending.explain(cluster.scheduler(state.scheduler), state, array=array)
        return "waiting", found.json(), found.facts()
    held = failed_state(state)
    if job.outcome is Outcome.RUNNING and held is None:
        lines = pending.running(state)
        return "running", {"lines": lines}, [("here", lines)]
    from clusterrun.why import ended  # a pending job needs none of it

    diagnosis = ended.explain(cluster, held or state)
    facts: Facts = [("held", [held_line(state)])] if held else []
    return "ended", diagnosis.json(), [*facts, *diagnosis.facts()]


def _state_text(state: RunState, first: int | None) -> str:
    """Return a job's state and exit status; ``first`` is the status of the rank that failed first, if known."""
    job = state.status
    status = f", exit status {job.exit_status}" if job.exit_status else ""
    if job.exit_status and first and first != job.exit_status:
        status = f", exit status {first} (of the rank that failed first; Slurm reports the highest, {job.exit_status})"
    return f"{job.state}{status}" + (f"  ({state.note})" if state.note else "")


def _logs(ui: Ui, folder: Path) -> None:
    from clusterrun.why import ended

    diagnosis = ended.explain_logs(folder)
    ui.data([{"logs": str(folder), "kind": "ended", "ended": diagnosis.json()}])
    ui.facts(diagnosis.facts())
