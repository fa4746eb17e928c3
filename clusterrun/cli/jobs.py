"""``status``, ``list`` and ``wait``: the state of jobs."""

from __future__ import annotations

import time

import click

from clusterrun.base.errors import RequestError
from clusterrun.cli.common.names import LAST, find_ids
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.common.show import first_cause, is_certain, ladder_reports, list_jobs, no_jobs_message, status_lines
from clusterrun.state import filters
from clusterrun.state.filters import JobFilter
from clusterrun.state.show import LIST_COLUMNS, list_row, state_json, status_json
from clusterrun.terminal.ui import Ui


@click.command()
@click.argument("job_ids", nargs=-1, metavar="[JOBID]...")
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
    if watch:
        _refuse_json(as_json, " ".join(["status", *job_ids]))
        from clusterrun.cli.common.watching import NamedJobs, watch_jobs

        cluster = session.cluster(ui.note, polling=True)
        named = NamedJobs(cluster, find_ids(cluster, job_ids or (LAST,), several=True), explain=explain)
        ctx.exit(0 if is_certain(watch_jobs(ui, named)) else 75)
    cluster = session.cluster(ui.note)
    states = cluster.status(find_ids(cluster, job_ids or (LAST,), several=True))
    sweep = {state.record.sweep if state.record is not None else "" for state in states}
    if (len(states) > 1 and len(sweep) == 1 and sweep != {""}) or best:
        from clusterrun.cli.sweep import show_sweep  # most jobs are of no sweep

        show_sweep(ui, states, best, largest=largest)
        ctx.exit(0 if is_certain(states) else 75)
    reports = ladder_reports(cluster, states)
    if as_json:
        pairs = zip(states, reports, strict=True)
        ui.data([{**status_json(state), "ladder": report and report.json()} for state, report in pairs])
    else:
        ui.say(*status_lines(filters.collapse(states), explain=explain, cause=first_cause))
        ui.say(*(line for report in reports if report is not None for line in ("", *report.lines())))
    if not is_certain(states):
        ctx.exit(75)


@click.command(name="list")
@click.option("--all", "everything", is_flag=True, help="Include ended jobs.")
@click.option("--state", metavar="STATE[,STATE]", help="Only jobs in these states, by long or short name (PENDING,R).")
@click.option("--name", metavar="GLOB", help="Only jobs whose name matches GLOB.")
@click.option("--since", metavar="AGE", help="Only jobs newer than AGE (30m, 12h, 2d, 1w).")
@click.option("--expand", is_flag=True, help="Show a row for each task of an array.")
@click.option("--all-clusters", is_flag=True, help="Include jobs on other clusters.")
@click.option(
    "--cluster", metavar="NAME",
    help="Only jobs on cluster NAME, with their last recorded states if the cluster cannot be reached.",
)  # fmt: skip
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@json_option
@click.pass_obj
def list_command(
    session: Session, everything: bool, state: str | None, name: str | None, since: str | None, expand: bool,
    all_clusters: bool, cluster: str | None, watch: bool, as_json: bool,
) -> None:  # fmt: skip
    """List your active jobs, oldest first: runs from any folder, and other tools' jobs in the queue.

    \b
      clusterrun list
      clusterrun list --state PENDING --name 'sweep-*'
      clusterrun list --all --since 2d
      clusterrun list --watch

    A job that you submitted with another tool is not a run: with --json, run_id is null. An array has one row for each
    state of its tasks. --all also lists ended runs, and ended jobs that are still in the queue; so does --state with an
    end state, such as FAILED. --watch queries Slurm every 10 s while jobs change, and slows down to every 120 s while
    they do not.
    """
    ui = Ui("list", as_json=as_json)
    if cluster is not None and all_clusters:
        raise RequestError("--cluster and --all-clusters cannot be combined", hint="use one of them")
    if cluster == "":
        raise RequestError("--cluster needs a name", hint="--all-clusters lists the jobs on all clusters")
    job_filter = JobFilter(
        states=filters.parse_states(state) if state else frozenset(),
        name=name or "",
        since=filters.parse_since(since, time.time()) if since else None,
        everything=everything,
        all_clusters=all_clusters,
        cluster=(cluster or "").lower(),
    )
    if watch:
        _refuse_json(as_json, "list")
        from clusterrun.cli.common.watching import JobList, watch_jobs

        problems: list[str] = []
        watch_jobs(ui, JobList(session.cluster(problems.append, polling=True), problems, job_filter, expand=expand))
        return
    found = list_jobs(session.cluster(ui.note), job_filter, expand=expand, merge_runs=not as_json).states
    if as_json:
        ui.data([state_json(one) for one in found])
    elif found:
        ui.table(LIST_COLUMNS, [list_row(one) for one in found])
    else:
        ui.note(no_jobs_message(job_filter))


def _refuse_json(as_json: bool, command: str) -> None:
    if as_json:
        raise RequestError(
            "--watch and --json cannot be combined", hint=f"run `clusterrun {command} --json` repeatedly instead"
        )


@click.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="JOBID...")
@json_option
@click.pass_context
def wait(ctx: click.Context, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Wait for jobs to end. Exit 0 if all succeed, 1 if one fails, 75 if one is lost or its outcome is unknown.

    \b
      clusterrun wait 123 && ./evaluate.sh
      clusterrun wait 123 124_7

    Works for any job that you can see, including array tasks. Ctrl-C stops the wait; the jobs keep running.
    """
    from clusterrun.cli.follow import report_end  # `list` and `status` read no logs

    ui = Ui("wait", as_json=as_json)
    cluster = ctx.obj.cluster(ui.note)
    named = find_ids(cluster, job_ids, several=True, active=True, newest=True)  # `submit …; wait last`
    parts = [name for name in named if filters.is_part(name) and cluster.run(name) is not None]
    if parts:
        cluster.status(parts)  # refuse a task of a run that is no array, instead of waiting for the whole run
    states = cluster.wait(cluster.find_jobs(named))
    ui.data([state_json(state) for state in states])
    ctx.exit(report_end(ui, filters.collapse(states)))
