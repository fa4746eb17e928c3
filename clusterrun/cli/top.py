"""``top``: show jobs, ranks and logs on one live screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterrun.base.errors import NoSuchJob, RequestError
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import find_target
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cluster import Cluster
from clusterrun.state.reconcile import RunState, Target
from clusterrun.state.show import state_json
from clusterrun.terminal.paint import has_colours
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.records.progress import RankProgress
    from clusterrun.top.source import TopData


@click.command()
@click.argument("job_id", required=False, metavar="[JOBID]", shell_complete=complete.active_jobs)
@click.option("--theme", type=click.Choice(["dark", "light"]), help="Colors for a dark or light terminal.")
@click.option("--demo", is_flag=True, help="Play a recorded run; it needs no cluster.")
@json_option
@click.pass_context
def top(ctx: click.Context, job_id: str | None, theme: str | None, demo: bool, as_json: bool) -> None:
    """Show a full-screen live view of your jobs, and the ranks and log of one job. JOBID selects that job.

    \b
      clusterrun top
      clusterrun top 123
      clusterrun top --json            print the view once, as JSON
      clusterrun top --demo            try it without a cluster

    Keys: arrows and enter select, f shows the log, e explains, c cancels (asks first), h holds or releases, q quits.
    """
    ui = Ui("top", as_json=as_json)
    if not as_json:
        _prepare_terminal()
    if demo:
        ctx.exit(_play(job_id, theme, as_json=as_json))
    notes: list[str] = []
    session: Session = ctx.obj
    cluster = session.cluster(ui.note if as_json else notes.append)  # standard error would overwrite the screen
    from clusterrun.top.source import TopData, key_of

    state = _find_job(cluster, find_target(cluster, job_id)) if job_id else None
    pinned, selected = (state.record, key_of(state)) if state is not None else (None, "")
    source = TopData(cluster, pinned, polled=session.cluster(lambda line: None, polling=True))
    if as_json:
        ui.data(_snapshot(source, selected))
        return
    from clusterrun.top.app import Top

    app = Top(source, theme=theme or theme_of(os.environ), selected=selected, notes=notes)
    ctx.exit(app.run() or 0)


def _play(job_id: str | None, theme: str | None, *, as_json: bool) -> int:
    """Show the recorded run; return the exit code."""
    if job_id or as_json:
        raise RequestError("--demo cannot be combined with a job id or --json")
    from tempfile import TemporaryDirectory

    from clusterrun.top.app import Top
    from clusterrun.top.demo import NOTE, EverySecond, Recording

    with TemporaryDirectory(prefix="clusterrun-demo-") as folder:
        app = Top(Recording(Path(folder)), theme=theme or theme_of(os.environ), pace=EverySecond(1.0), notes=[NOTE])
        return app.run() or 0


def _prepare_terminal() -> None:
    """Tell textual if there are to be no colours; raises RequestError without a terminal."""
    if not _is_terminal():
        raise RequestError("clusterrun top needs a terminal", hint="use `clusterrun list` or `clusterrun top --json`")
    if not has_colours(os.environ, is_terminal=True):
        os.environ["NO_COLOR"] = "1"


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def theme_of(environ: Mapping[str, str]) -> str:
    """Return ``light`` if the terminal reports a light background (COLORFGBG: ``0;15``), else ``dark``."""
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if background in ("7", "15") else "dark"


def _find_job(cluster: Cluster, target: Target) -> RunState:
    """Return the named job; raises NoSuchJob for another user's, which top does not show."""
    state, job = cluster.status([target])[0], target.text
    if state.user not in ("", cluster.user):
        raise NoSuchJob(
            f"job {job} belongs to {state.user}; clusterrun top shows only your jobs", hint=f"clusterrun status {job}"
        )
    return state


def _snapshot(source: TopData, selected: str) -> list[dict[str, Any]]:
    from clusterrun.top.source import key_of

    states = [state for state in source.jobs().states if selected in ("", key_of(state))]
    return [{**state_json(s), "ranks": [_rank_json(rank) for rank in source.ranks(s, only=None).ranks]} for s in states]


def _rank_json(rank: RankProgress) -> dict[str, Any]:
    found = {**rank._asdict(), "gpu": rank.gpu._asdict() if rank.gpu else None}
    del found["gpu_record"]
    return found
