"""``cancel``: cancel jobs by id, by name, by state, or all."""

from __future__ import annotations

from collections.abc import Sequence

import click

from clusterrun.base.errors import RequestError
from clusterrun.base.job import Outcome
from clusterrun.base.units import plural
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import LAST, find_targets
from clusterrun.cli.common.session import json_option
from clusterrun.cli.common.show import confirm
from clusterrun.cluster import Cluster
from clusterrun.scheduler import Cancelled
from clusterrun.state import filters
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import STATE_COLUMNS, handle, state_json, state_row
from clusterrun.terminal.ui import Ui


@click.command()
@click.argument("job_ids", nargs=-1, metavar="[JOBID]...", shell_complete=complete.active_jobs)
@click.option("--name", default="", metavar="GLOB", help="Only jobs whose name matches GLOB.")
@click.option("--state", metavar="STATE[,STATE]", help="Only jobs in these states, by long or short name (PENDING,R).")
@click.option("--all", "everything", is_flag=True, help="Cancel all your active jobs.")
@click.option("--dry-run", is_flag=True, help="Show which jobs would be cancelled; do not cancel them.")
@click.option("--yes", is_flag=True, help="Cancel without asking.")
@json_option
@click.pass_context
def cancel(
    ctx: click.Context, job_ids: tuple[str, ...], name: str, state: str | None, everything: bool, dry_run: bool,
    yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Cancel jobs. Without a job id, the command asks for confirmation unless --yes is given.

    \b
      clusterrun cancel                your last active job from this folder
      clusterrun cancel 123 124
      clusterrun cancel --name 'sweep-*' --state PENDING --yes
      clusterrun cancel --all --dry-run
    """
    ui = Ui("cancel", as_json=as_json)
    cluster: Cluster = ctx.obj.cluster(ui.note)
    targets = _choose(cluster, job_ids, name, state, everything)
    count = sum(target.is_alive and target.belongs_to(cluster.user) for target in targets)
    rows = list(map(state_row, targets))
    if not targets:
        ui.data([])
        ui.note("no matching active jobs")
    elif dry_run:
        ui.data(list(map(state_json, targets)))
        ui.table(STATE_COLUMNS, rows)
        ui.note(f"would cancel {plural(count, 'job')}; nothing was cancelled")
    elif job_ids or yes or not count or confirm(ui, "cancel", plural(len(targets), "job"), STATE_COLUMNS, rows):
        results = cluster.cancel(targets)
        _print(ui, results)
        # a job that is alive, 3, counts before one of which that is not known, 75
        ctx.exit(min(_exit_codes(results) - {0}, default=0))


def _choose(cluster: Cluster, ids: tuple[str, ...], name: str, state: str | None, everything: bool) -> list[RunState]:
    if not (name or state or everything):
        return _typed(cluster, ids or (LAST,))
    if ids:
        raise RequestError("job ids cannot be combined with --name, --state or --all", hint="clusterrun cancel JOBID")
    states = filters.parse_states(state) if state else frozenset()
    return filters.choose(cluster.select(name=name), filters.JobFilter(states=states))


def _print(ui: Ui, results: Sequence[tuple[RunState, Cancelled]]) -> None:
    ui.data([{**state_json(target), "cancelled": result.done, "said": result.detail} for target, result in results])
    for target, result in results:
        word = "Cancelled" if result.done else "Not confirmed" if result.may_be else "Not cancelled"
        ui.say(": ".join(filter(None, (f"{word} {handle(target)}", result.detail))))
        if target.status.is_over and target.others:
            others = " ".join(map(str, target.others))
            ui.note(f"job {others} continues its run; to cancel that job: clusterrun cancel {others}")


def _typed(cluster: Cluster, job_ids: tuple[str, ...]) -> list[RunState]:
    """Return the named jobs, each once; raises NoSuchJob."""
    states = cluster.status(find_targets(cluster, job_ids, several=True, active=True))
    return list({state.key: state for state in states}.values())


def _exit_codes(results: Sequence[tuple[RunState, Cancelled]]) -> set[int]:
    """Return 0 for a job that is not alive any more, 3 if it is, 75 if it is not known: it may run out of sight."""
    codes = set()
    for target, result in results:
        if result.done:
            codes.add(0)
        elif not result.may_be and (result.alive or target.is_alive):
            codes.add(3)
        elif result.may_be or target.status.outcome is Outcome.UNKNOWN:
            codes.add(75)
    return codes
