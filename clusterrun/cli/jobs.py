"""``status``, ``list`` and ``wait``: how jobs stand."""

from __future__ import annotations

import time

import click

from clusterrun import listing
from clusterrun.cli.options import json_option
from clusterrun.cluster import Cluster
from clusterrun.errors import RequestError
from clusterrun.job import JobId, Outcome
from clusterrun.listing import Wanted
from clusterrun.states import RunState
from clusterrun.states_shown import LIST_COLUMNS, list_row, state_json, state_lines, status_json
from clusterrun.ui import Ui


@click.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="JOBID...")
@click.option("--explain", is_flag=True, help="Say where each value that was asked came from.")
@json_option
@click.pass_context
def status(ctx: click.Context, job_ids: tuple[str, ...], explain: bool, as_json: bool) -> None:
    """How jobs stand, in Slurm's words, and who says so. JOBID is a job id or a run id.

    \b
      clusterrun status 123
      clusterrun status 123 124 --json

    Exit 0 whatever the state, 75 where it is not known now (what was last known is shown, and how long ago), 4 where
    there is no such job.
    """
    ui = Ui("status", as_json=as_json)
    states = Cluster(tell=ui.note).status(job_ids)
    if as_json:
        ui.data([status_json(state) for state in states])
    else:
        for number, state in enumerate(listing.collapse(states)):
            ui.say(*[""][: number > 0], *state_lines(state, explain=explain, first=_first_cause(state)))
    if any(state.as_of is not None or state.status.outcome in (Outcome.UNKNOWN, Outcome.LOST) for state in states):
        ctx.exit(75)


def _first_cause(state: RunState) -> str:
    if state.record is None or state.status.outcome in (Outcome.DONE, Outcome.RUNNING):
        return ""
    from clusterrun import diagnose  # and not above: most commands end without it

    return diagnose.in_one_line(state)


@click.command(name="list")
@click.option("--all", "everything", is_flag=True, help="The finished ones too.")
@click.option("--state", metavar="STATE[,STATE]", help="Those in these states (PENDING, or PD).")
@click.option("--name", metavar="GLOB", help="Those whose name matches.")
@click.option("--since", metavar="AGE", help="Those submitted within 30m, 12h, 2d or 1w.")
@click.option("--expand", is_flag=True, help="A row for each task of an array.")
@click.option("--watch", is_flag=True, help="Go on showing it; Ctrl-C ends it.")
@json_option
def list_(
    everything: bool, state: str | None, name: str | None, since: str | None, expand: bool, watch: bool, as_json: bool
) -> None:
    """My jobs that are not over, oldest first: runs from any folder, and what other tools have in the queue.

    \b
      clusterrun list
      clusterrun list --state PENDING --name 'sweep-*'
      clusterrun list --all --since 2d
      clusterrun list --watch

    A job of another tool has no run: its run_id is null in --json. An array has a row for each state its tasks are in.
    --all adds the runs that are over, and what the queue still holds; a --state that means an end does so too. --watch
    asks Slurm every 10 s while jobs change, up to every 120 s while none does.
    """
    ui = Ui("list", as_json=as_json)
    if watch and as_json:
        raise RequestError("--watch has no --json: an envelope is one answer", hint="run `list --json` again instead")
    wanted = Wanted(
        states=listing.read_states(state) if state else frozenset(),
        name=name or "",
        since=listing.read_since(since, time.time()) if since else None,
        everything=everything,
    )
    if watch:
        from clusterrun.cli.watching import watch_list

        watch_list(ui, wanted, expand=expand)
    found = rows(Cluster(tell=ui.note), wanted, expand=expand)
    if as_json:
        ui.data([state_json(one) for one in found])
    elif found:
        ui.table(LIST_COLUMNS, [list_row(one) for one in found])
    else:
        ui.note(nothing(wanted))


def rows(cluster: Cluster, wanted: Wanted, *, expand: bool) -> list[RunState]:
    """The jobs that are wanted, as rows in their order."""
    found = listing.choose(cluster.listing(everything=wanted.history), wanted)
    return listing.arrange(found, expand=expand)


def nothing(wanted: Wanted) -> str:
    """What is said instead of an empty table."""
    asked = [f"in state {', '.join(sorted(wanted.states))}"] if wanted.states else []
    asked += [f"named {wanted.name}"] if wanted.name else []
    asked += ["submitted since then"] if wanted.since is not None else []
    if asked:
        return f"no jobs {', '.join(asked)}"
    return "no jobs" if wanted.history else "no jobs that are not over; `clusterrun list --all` shows the others"


@click.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="JOBID...")
@json_option
@click.pass_context
def wait(ctx: click.Context, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Wait until jobs are over: exit 0 when all are done, 1 when one failed, 75 when one is lost or unknown.

    \b
      clusterrun wait 123 && ./evaluate.sh
      clusterrun wait 123 124_7

    It waits for any job that may be seen, an array's tasks included. Ctrl-C ends the waiting, not the jobs.
    """
    from clusterrun.cli.follow import report_end  # and not above: list and status read no logs

    ui = Ui("wait", as_json=as_json)
    cluster = Cluster(tell=ui.note)
    found = {job_id: cluster.run(job_id) for job_id in job_ids}
    runs = {run.run_id: run for run in found.values() if run is not None}
    others = [JobId.parse(job_id) for job_id, run in found.items() if run is None]
    states = cluster.wait([*runs.values()], others)
    ui.data([state_json(state) for state in states])
    ctx.exit(report_end(ui, listing.collapse(states)))


globals()["list"] = list_
