"""``top``: jobs, ranks and logs on one screen, as they are now."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from clusterrun.cli.options import json_option
from clusterrun.cluster import Cluster
from clusterrun.errors import NoSuchJob, RequestError
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import state_json
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.top.source import Source


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
    cluster = Cluster(notify=ui.note if as_json else notes.append)  # a line on standard error would spoil the screen
    from clusterrun.top.source import Source, key_of

    state = _asked(cluster, job_id) if job_id else None
    pinned, chosen = (state.record, key_of(state)) if state is not None else (None, "")
    told: list[str] = []
    source = Source(cluster, pinned, polled=Cluster(notify=told.append, polling=True), told=told)
    if as_json:
        ui.data(_snapshot(source, chosen))
        return
    from clusterrun.top.app import Top

    app = Top(source, theme=theme or theme_of(os.environ), chosen=chosen, notes=notes)
    ctx.exit(app.run() or 0)


def theme_of(environ: Mapping[str, str]) -> str:
    """``light`` where the terminal says that its background is light (COLORFGBG: ``0;15``), else ``dark``."""
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if background in ("7", "15") else "dark"


def _asked(cluster: Cluster, job_id: str) -> RunState:
    """The job that was asked for; raises NoSuchJob for one that is not among mine, which is all that top shows."""
    state = cluster.status([job_id])[0]
    owner = state.record.user if state.record is not None else state.status.user
    if owner and owner != cluster.user:
        raise NoSuchJob(f"job {job_id} belongs to {owner}: top shows yours", hint=f"clusterrun status {job_id}")
    return state


def _snapshot(source: Source, chosen: str) -> list[dict[str, Any]]:
    from clusterrun.top.source import key_of

    states = [state for state in source.jobs().states if chosen in ("", key_of(state))]
    return [{**state_json(s), "ranks": [dataclasses.asdict(rank) for rank in source.ranks(s).ranks]} for s in states]
