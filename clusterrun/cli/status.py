"""``status``: the state of jobs in detail."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from clusterrun.base.errors import RequestError
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import LAST, find_targets
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.common.show import efficiency_of, ending_of, is_certain, ladder_reports, status_lines
from clusterrun.cluster import Cluster
from clusterrun.state import filters
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import status_json
from clusterrun.terminal.ui import Ui


@click.command()
@click.argument("job_ids", nargs=-1, metavar="[JOBID]...", shell_complete=complete.jobs)
@click.option("--explain", is_flag=True, help="Show where each requested value came from.")
@click.option("--watch", is_flag=True, help="Refresh until all jobs have ended; Ctrl-C stops watching.")
@click.option("--best", metavar="METRIC", help="In a sweep, show the task with the smallest value of this metric.")
@click.option("--max", "largest", is_flag=True, help="With --best, show the task with the largest value instead.")
@json_option
@click.pass_context
def status(
    ctx: click.Context, job_ids: tuple[str, ...], explain: bool, watch: bool, best: str | None, largest: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Show the state of jobs in detail, with the source of each state. JOBID is a job id, a run id or a job name.

    \b
      clusterrun status                your last job from this folder
      clusterrun status 123
      clusterrun status 123 124 --json
      clusterrun status 123 --watch
      clusterrun status SWEEP --best val_loss        a table of its tasks (docs/sweeps.md)

    Exit 0 for any state, 4 if there is no such job, 75 if the current state is not known (the last known state is
    shown with its age). --watch queries Slurm every 10 s while jobs change, slows down to every 120 s while they do
    not, and stops when all jobs have ended.
    """
    ui = Ui("status", as_json=as_json)
    session: Session = ctx.obj
    _refuse_unused(best, watch=watch, largest=largest)
    if watch:
        states = _watch(ui, session, job_ids, explain=explain)
        ctx.exit(0 if is_certain(states) else 75)
    cluster = session.cluster(ui.note)
    states = cluster.status(find_targets(cluster, job_ids or (LAST,), several=True))
    if best or _are_a_sweep(states):
        from clusterrun.cli.sweep import show_sweep  # most jobs are of no sweep

        show_sweep(ui, states, best, largest=largest)
    else:
        _show(ui, cluster, states, explain=explain)
    ctx.exit(0 if is_certain(states) else 75)


def _refuse_unused(best: str | None, *, watch: bool, largest: bool) -> None:
    """Raise RequestError for an option that another one leaves without effect."""
    if watch and best:
        raise RequestError("--watch cannot be combined with --best", hint="clusterrun status --help")
    if largest and not best:
        raise RequestError("--max needs --best METRIC", hint="clusterrun status --help")


def _watch(ui: Ui, session: Session, job_ids: Sequence[str], *, explain: bool) -> Sequence[RunState]:
    from clusterrun.cli.common.watching import NamedJobs, refuse_json, watch_jobs

    refuse_json(ui, " ".join(["status", *job_ids]))
    cluster = session.cluster(ui.note, polling=True)
    targets = find_targets(cluster, job_ids or (LAST,), several=True)
    return watch_jobs(ui, NamedJobs(cluster, targets, explain=explain))


def _are_a_sweep(states: Sequence[RunState]) -> bool:
    sweeps = {state.record.sweep if state.record is not None else "" for state in states}
    return len(states) > 1 and len(sweeps) == 1 and "" not in sweeps


def _show(ui: Ui, cluster: Cluster, states: Sequence[RunState], *, explain: bool) -> None:
    """Print jobs in full, each rung of a ladder with its report."""
    reports = ladder_reports(cluster, states)
    if ui.as_json:
        pairs = zip(states, reports, strict=True)
        ui.data([_as_json(cluster, state) | {"ladder": report and report.json()} for state, report in pairs])
        return
    ui.say(*status_lines(filters.collapse(states), explain=explain, ending=partial(ending_of, cluster)))
    for report in reports:
        if report is not None:
            ui.say("", *report.lines())


def _as_json(cluster: Cluster, state: RunState) -> dict[str, Any]:
    efficiency = efficiency_of(cluster, state)
    return {**status_json(state), "efficiency": efficiency and efficiency.json()}
