"""``top``: jobs, ranks and logs on one screen, as they are now."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import Any

import click

from clusterrun.cli.options import json_option
from clusterrun.cluster import Cluster
from clusterrun.errors import NoSuchJob, RequestError
from clusterrun.store import RunRecord
from clusterrun.ui import Ui, state_json


@click.command()
@click.argument("job_id", required=False, metavar="[JOBID]")
@click.option("--theme", type=click.Choice(["dark", "light"]), help="Colours for a dark or a light terminal.")
@json_option
@click.pass_context
def top(ctx: click.Context, job_id: str | None, theme: str | None, as_json: bool) -> None:
    """A full-screen live view of your jobs, the ranks of one, and its log; with JOBID it begins at that one.

    \b
      clusterrun top
      clusterrun top 123
      clusterrun top --json            what it would show, once

    Keys: arrows and enter choose, f follows the log, e explains, c cancels (it asks), h holds or releases, q leaves.
    """
    ui = Ui("top", as_json=as_json)
    if not as_json and not (sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"):
        raise RequestError("top needs a terminal", hint="`clusterrun list` prints a table, `top --json` what top knows")
    notes: list[str] = []
    cluster = Cluster(tell=ui.note if as_json else notes.append)  # a line on standard error would spoil the screen
    pinned = _run(cluster, job_id) if job_id else None
    from clusterrun.live.source import Source

    source = Source(cluster, pinned, polled=Cluster(tell=cluster.tell, sparing=True))
    if as_json:
        ui.data(_snapshot(source, pinned))
        return
    from clusterrun.live.app import Top

    app = Top(source, theme=theme or theme_of(os.environ), chosen=pinned.run_id if pinned else "", notes=notes)
    ctx.exit(app.run() or 0)


def theme_of(environ: Mapping[str, str]) -> str:
    """``light`` where the terminal says that its background is light (COLORFGBG: ``0;15``), else ``dark``."""
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if background in ("7", "15") else "dark"


def _run(cluster: Cluster, job_id: str) -> RunRecord:
    run = cluster.run(job_id)
    if run is None:
        cluster.status([job_id])  # which says it where there is no such job at all
        raise NoSuchJob(f"job {job_id} was not submitted by clusterrun", hint=f"clusterrun status {job_id}")
    return run


def _snapshot(source: Any, pinned: RunRecord | None) -> list[dict[str, Any]]:
    rows = []
    for state in source.jobs():
        if pinned is not None and (state.record is None or state.record.run_id != pinned.run_id):
            continue
        ranks = source.ranks(state).ranks
        rows.append({**state_json(state), "ranks": [dataclasses.asdict(rank) for rank in ranks]})
    return rows
