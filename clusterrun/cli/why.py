"""``why``: explain why a job is pending, what a running job is doing, or how it ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from clusterrun.base.errors import RequestError, SchedulerError
from clusterrun.base.job import JobStatus, Outcome
from clusterrun.base.units import clause, first_few
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import LAST, find_targets
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.exec import find_running
from clusterrun.cluster import Cluster
from clusterrun.run_folder.node_failures import describe
from clusterrun.state import failed_nodes
from clusterrun.state.launches import failed_state, held_line
from clusterrun.state.reconcile import RunState, Target
from clusterrun.state.show import handle, other_jobs
from clusterrun.state.waited import waited
from clusterrun.terminal.ui import Ui
from clusterrun.why import pending

Facts = list[tuple[str, Sequence[str]]]


@click.command()
@click.argument("job_ids", nargs=-1, metavar="[JOBID]...", shell_complete=complete.jobs)
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
        from clusterrun.why import ended

        cause = ended.explain_logs(Path(logs))
        ui.data([{"logs": str(Path(logs)), "kind": "ended", "ended": cause.json()}])
        ui.facts(cause.facts())
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
    answers, failures = [], []
    for group in groups:
        try:
            answers.append(_explain(cluster, group, _array(group[0], groups, targets)))
        except SchedulerError as error:
            failures.append(error)
    if failures and (ui.as_json or not answers):
        raise failures[0]
    ui.data([data for data, _ in answers])
    for number, (_, facts) in enumerate(answers):
        ui.say(*[""] * min(number, 1))
        ui.facts(facts)
    if failures:
        raise failures[0]


def _stacks(ui: Ui, cluster: Cluster, targets: Sequence[Target]) -> None:
    if len(targets) > 1:
        raise RequestError("--stacks takes one job", hint=f"clusterrun why {targets[0].text} --stacks")
    from clusterrun.records import progress, run_record
    from clusterrun.run_folder import ends
    from clusterrun.why import nccl, stacks

    state = find_running(cluster, targets[0])
    job, run = state.status.id, state.record
    hint = f"clusterrun exec {job} -- ps -ef"
    if run is None:
        raise RequestError(f"job {job} is not a clusterrun job", hint=hint)
    ranks = progress.ranks(run, job.task)
    if not ranks:
        raise RequestError(f"no rank of job {job} has recorded its process ID yet", hint=hint)
    python = str(run.sources.get("python", ("python3", ""))[0])
    read = stacks.read_stacks(state.status.inner_id, ranks, python, cluster.environ)
    attempt = run_record.newest_attempt(run, job.task)
    start = ends.load_start(attempt) if attempt is not None else None
    said = nccl.ask(state.status.inner_id, ranks, start, python, cluster.environ)
    ui.data({"job_id": str(job), "stacks": [stack._asdict() for stack in read], "nccl": said})
    for paragraph in (*stacks.describe(read, len(ranks) - len(read)), *nccl.describe(said)):
        ui.say(*paragraph)


def _group(states: Sequence[RunState]) -> list[list[RunState]]:
    """Return the tasks of each array by state and reason, since there may be thousands; other jobs by themselves.

    Jobs keep their order; of an array the failed tasks come first, those that are done last.
    """
    groups: dict[tuple[str, ...], list[RunState]] = {}
    for state in states:
        job = state.status
        alone = "" if job.id.task is not None else handle(state)
        group = groups.setdefault((job.id.base, alone, job.state, job.reason), [state])
        if state is not group[0]:  # a job may be typed twice
            group.append(state)
    order = [state.status.id.base for state in states]
    return sorted(groups.values(), key=lambda group: (order.index(group[0].status.id.base), _urgency(group[0].status)))


def _urgency(job: JobStatus) -> int:
    """Return the sort key of an array's tasks: 0 for a failed one, 1 for one that ended in another bad way."""
    if job.outcome is Outcome.RUNNING:
        return 2 if job.state == "PENDING" else 3
    return {Outcome.FAILED: 0, Outcome.DONE: 4}.get(job.outcome, 1)


def _array(state: RunState, groups: Sequence[Sequence[RunState]], typed: Sequence[Target]) -> str:
    """Return the id of an array that was typed and whose tasks all have the same state and reason; else ""."""
    base = state.status.id.base
    is_typed = base in {target.text for target in typed}
    is_whole = [group[0].status.id.base for group in groups].count(base) == 1
    return base if is_typed and is_whole else ""


def _explain(cluster: Cluster, group: Sequence[RunState], array: str) -> tuple[dict[str, Any], Facts]:
    """Return the explanation of the first of the jobs alike, as JSON and as parts to show."""
    state, *others = group
    alike = [str(other.status.id) for other in others]
    job, run = state.status, state.record
    kind, data, explanation = _find_cause(cluster, state, array)
    wait = waited(state) if job.is_over else None
    facts: Facts = [
        ("job", [f"{handle(state)}  {state.name}"]),
        ("state", [_state_text(state, data.get("exit_status"))]),
        ("waited", list(filter(None, [wait.line() if wait is not None else ""]))),
        ("also", list(filter(None, [other_jobs(state)]))),
        ("alike", list(filter(None, [first_few(alike)]))),
    ]
    failures = failed_nodes.of_job(cluster.state, run, job)
    nodes = [f"{node}: {describe(seen, time.time())}" for node, seen in failures.items()]
    as_json = {
        "job_id": None if state.is_unsubmitted else str(job.id),
        "run_id": run.run_id if run else None,
        "name": state.name,
        "state": job.state,
        "reason": job.reason,
        "outcome": job.outcome.value,
        "alike": alike,
        "waited": wait and wait.json(),
        "node_failures": [one.json() for seen in failures.values() for one in seen],
        "kind": kind,
        kind: data,
    }
    return as_json, [*facts, *explanation, ("nodes", nodes)]


def _find_cause(cluster: Cluster, state: RunState, array: str) -> tuple[str, dict[str, Any], Facts]:
    job = state.status
    if job.state == "PENDING":
        report = pending.explain(cluster.scheduler(state.scheduler), state, array=array)
        return "waiting", report.json(), report.facts()
    held = failed_state(state)
    if job.outcome is Outcome.RUNNING and held is None:
        lines = pending.running(state)
        return "running", {"lines": lines}, [("here", lines)]
    from clusterrun.why import ended  # a pending job needs none of it

    cause = ended.explain(cluster, held or state)
    facts = cause.facts()
    return "ended", cause.json(), [("held", [held_line(state)]), *facts] if held else facts


def _state_text(state: RunState, first: int | None) -> str:
    """Return a job's state and exit status; ``first`` is the status of the rank that failed first, if known."""
    job = state.status
    text = job.state
    if job.exit_status:
        text += f", exit status {first or job.exit_status}"
        if first not in (None, 0, job.exit_status):
            text += f" (of the rank that failed first; Slurm reports the highest, {job.exit_status})"
    return text + clause(state.note, "  ({})")
