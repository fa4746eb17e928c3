"""``status``, ``list`` and ``wait``: how jobs stand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import click

from clusterrun.cli.options import json_option
from clusterrun.cluster import Cluster
from clusterrun.errors import RequestError
from clusterrun.job import JobId, Outcome
from clusterrun.state import filters
from clusterrun.state.filters import JobFilter
from clusterrun.state.reconcile import Listing, RunState
from clusterrun.state.show import LIST_COLUMNS, list_row, state_json, state_lines, status_json
from clusterrun.terminal.ui import Ui


@click.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="JOBID...")
@click.option("--explain", is_flag=True, help="Say where each value that was asked came from.")
@click.option("--watch", is_flag=True, help="Go on showing it until all are over; Ctrl-C ends it.")
@json_option
@click.pass_context
def status(ctx: click.Context, job_ids: tuple[str, ...], explain: bool, watch: bool, as_json: bool) -> None:
    """How jobs stand, in Slurm's words, and who says so. JOBID is a job id or a run id.

    \b
      clusterrun status 123
      clusterrun status 123 124 --json
      clusterrun status 123 --watch

    Exit 0 whatever the state, 75 where it is not known now (what was last known is shown, and how long ago), 4 where
    there is no such job. --watch asks Slurm every 10 s while something changes, up to every 120 s while nothing does,
    and ends by itself once all of the jobs are over for good.
    """
    ui = Ui("status", as_json=as_json)
    if watch:
        _refuse_json(as_json, f"status {' '.join(job_ids)}")
        from clusterrun.cli.watching import watch_status

        ctx.exit(watch_status(ui, job_ids, explain=explain))
    states = Cluster(notify=ui.note).status(job_ids)
    if as_json:
        ui.data([status_json(state) for state in states])
    else:
        ui.say(*status_lines(filters.collapse(states), explain=explain, first=first_cause))
    if not is_certain(states):
        ctx.exit(75)


def status_lines(states: Sequence[RunState], *, explain: bool, first: Callable[[RunState], str]) -> list[str]:
    """Jobs in full, an empty line between two; ``first`` tells the first cause of an end."""
    blocks = [state_lines(state, explain=explain, first=first(state)) for state in states]
    return [line for number, block in enumerate(blocks) for line in ([""] if number else []) + block]


def is_certain(states: Sequence[RunState]) -> bool:
    """Whether it is known of all jobs how they stand now."""
    return all(s.as_of is None and s.status.outcome not in (Outcome.UNKNOWN, Outcome.LOST) for s in states)


def first_cause(state: RunState) -> str:
    """Why a run ended, in a line; empty where it has not, or well, or it is no run of ours."""
    if state.record is None or state.status.outcome in (Outcome.DONE, Outcome.RUNNING):
        return ""
    from clusterrun.why import ended  # and not above: most commands end without it

    return ended.in_one_line(state)


@click.command(name="list")
@click.option("--all", "everything", is_flag=True, help="The finished ones too.")
@click.option("--state", metavar="STATE[,STATE]", help="Those in these states (PENDING, or PD).")
@click.option("--name", metavar="GLOB", help="Those whose name matches.")
@click.option("--since", metavar="AGE", help="Those submitted within 30m, 12h, 2d or 1w.")
@click.option("--expand", is_flag=True, help="A row for each task of an array.")
@click.option("--all-clusters", is_flag=True, help="Include jobs of clusters other than this shell's.")
@click.option("--watch", is_flag=True, help="Go on showing it; Ctrl-C ends it.")
@json_option
def list_(
    everything: bool, state: str | None, name: str | None, since: str | None, expand: bool, all_clusters: bool,
    watch: bool, as_json: bool,
) -> None:  # fmt: skip
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
    if watch:
        _refuse_json(as_json, "list")
    wanted = JobFilter(
        states=filters.parse_states(state) if state else frozenset(),
        name=name or "",
        since=filters.parse_since(since, time.time()) if since else None,
        everything=everything,
        all_clusters=all_clusters,
    )
    if watch:
        from clusterrun.cli import watching

        watching.watch(ui, watching.Listed(wanted, expand=expand))
        return
    found = rows(Cluster(notify=ui.note), wanted, expand=expand).states
    if as_json:
        ui.data([state_json(one) for one in found])
    elif found:
        ui.table(LIST_COLUMNS, [list_row(one) for one in found])
    else:
        ui.note(nothing(wanted))


def _refuse_json(as_json: bool, command: str) -> None:
    if as_json:
        raise RequestError(
            "--watch has no --json: an envelope is one answer", hint=f"run `clusterrun {command} --json` again instead"
        )


def rows(cluster: Cluster, wanted: JobFilter, *, expand: bool) -> Listing:
    """Return the jobs that match the filter, as rows in their order."""
    found = cluster.listing(everything=wanted.history, all_clusters=wanted.all_clusters)
    return replace(found, states=filters.arrange(filters.choose(found.states, wanted), expand=expand))


def nothing(wanted: JobFilter) -> str:
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
    cluster = Cluster(notify=ui.note)
    found = {job_id: cluster.run(job_id) for job_id in job_ids}
    runs = {run.run_id: run for run in found.values() if run is not None}
    others = [JobId.parse(job_id) for job_id, run in found.items() if run is None]
    parts = [job_id for job_id, run in found.items() if run is not None and filters.is_part(job_id)]
    if parts:
        cluster.status(parts)  # a part of a run that has none is refused, not waited for as all of it
    states = cluster.wait([*runs.values()], others)
    ui.data([state_json(state) for state in states])
    ctx.exit(report_end(ui, filters.collapse(states)))


globals()["list"] = list_
