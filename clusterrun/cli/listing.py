"""``list``: the active jobs, and with ``--all`` the ended ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

import click

from clusterrun.base.errors import RequestError, nearest
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.common.show import list_jobs, no_jobs_message
from clusterrun.state import filters
from clusterrun.state.filters import JobFilter
from clusterrun.state.show import LIST_COLUMNS, list_row, state_json
from clusterrun.terminal.tables import filled
from clusterrun.terminal.ui import Ui

T = TypeVar("T")


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
@click.option("--columns", metavar="NAME[,NAME]", help="Only these columns, in this order (jobid,name,progress).")
@click.option(
    "--html", metavar="[FILE]", is_flag=False, flag_value="jobs.html",
    help="Write the table as a page to FILE, by default jobs.html; - is standard output.",
)  # fmt: skip
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@json_option
@click.pass_obj
def list_command(
    session: Session, everything: bool, state: str | None, name: str | None, since: str | None, expand: bool,
    all_clusters: bool, cluster: str | None, columns: str | None, html: str | None, watch: bool, as_json: bool,
) -> None:  # fmt: skip
    """List your active jobs, oldest first: runs from any folder, and other tools' jobs in the queue.

    \b
      clusterrun list
      clusterrun list --state PENDING --name 'sweep-*'
      clusterrun list --all --since 2d
      clusterrun list --watch
      clusterrun list --all --html

    A job that you submitted with another tool is not a run: with --json, run_id is null. An array has one row for each
    state of its tasks. --all also lists ended runs, and ended jobs that are still in the queue; so does --state with an
    end state, such as FAILED. --watch queries Slurm every 10 s while jobs change, and slows down to every 120 s while
    they do not.
    """
    ui = Ui("list", as_json=as_json)
    job_filter = _job_filter(everything, state, name, since, all_clusters, cluster)
    if watch or as_json:
        _refuse_without_table(columns=columns, html=html)
    shown = _columns(columns)
    if watch:
        _watch(ui, session, job_filter, expand=expand)
        return
    listing = list_jobs(session.cluster(ui.note), job_filter, expand=expand, merge_runs=not as_json)
    if as_json:
        ui.data([state_json(job) for job in listing.states])
    elif listing.states:
        _show(ui, shown, [list_row(job) for job in listing.states], html)
    else:
        ui.note(no_jobs_message(job_filter))


def _show(ui: Ui, chosen: Sequence[int] | None, rows: Sequence[Sequence[str]], html: str | None) -> None:
    """Print the table, or write it as a page to the file ``html``: the chosen columns, else those with a value.

    In a pipe nothing is left out, so that a program finds each column at its place.
    """
    is_for_people = html is not None or ui.on_terminal
    shown = chosen or (filled(LIST_COLUMNS, rows) if is_for_people else range(len(LIST_COLUMNS)))
    columns, cells = _chosen(LIST_COLUMNS, shown), [_chosen(row, shown) for row in rows]
    if html is None:
        ui.table(columns, cells)
        return
    from clusterrun.report import page

    page.send(ui, page.table_page("Jobs", columns, cells, time.time()), html)


def _chosen(values: Sequence[T], shown: Sequence[int]) -> list[T]:
    return [values[at] for at in shown]


def _refuse_without_table(**options: str | None) -> None:
    """Raise RequestError for an option of the table, which --watch and --json do not show."""
    for name, value in options.items():
        if value is not None:
            raise RequestError(f"--{name} cannot be combined with --watch or --json", hint="use one of them")


def _columns(names: str | None) -> Sequence[int] | None:
    """Return the positions of the named columns, None without names; raises RequestError for another name."""
    if names is None:
        return None
    known = {column.name.lower(): at for at, column in enumerate(LIST_COLUMNS)}
    wanted = [name.strip().lower() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise RequestError(f"--columns: no column {name[:40]!r}", hint=nearest(name, known) or ",".join(known))
    return [known[name] for name in wanted]


def _job_filter(
    everything: bool, state: str | None, name: str | None, since: str | None, all_clusters: bool, cluster: str | None
) -> JobFilter:
    if cluster is not None and all_clusters:
        raise RequestError("--cluster and --all-clusters cannot be combined", hint="use one of them")
    if cluster == "":
        raise RequestError("--cluster needs a name", hint="--all-clusters lists the jobs on all clusters")
    return JobFilter(
        states=filters.parse_states(state) if state else frozenset(),
        name=name or "",
        since=filters.parse_since(since, time.time()) if since else None,
        everything=everything,
        all_clusters=all_clusters,
        cluster=(cluster or "").lower(),
    )


def _watch(ui: Ui, session: Session, job_filter: JobFilter, *, expand: bool) -> None:
    from clusterrun.cli.common.watching import JobList, refuse_json, watch_jobs

    refuse_json(ui, "list")
    problems: list[str] = []
    cluster = session.cluster(problems.append, polling=True)
    watch_jobs(ui, JobList(cluster, problems, job_filter, expand=expand))
