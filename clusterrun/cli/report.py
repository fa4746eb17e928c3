"""``report``: a page about runs, or their curves in the terminal."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from clusterrun.base.errors import RequestError
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import LAST, find_targets, require_run
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cluster import Cluster
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.report.draw import Line

_ONLY_OURS = "only clusterrun's jobs have a report; try `clusterrun status`"
_MOST_RUNS = 16
_WIDEST, _HEIGHT = 120, 15  # of a plot, in letters
_PLOTTED = ("Loss", "Learning rate", "Tokens/s")


@click.command()
@click.argument("job_ids", nargs=-1, metavar="[JOBID]...", shell_complete=complete.jobs)
@click.option("-o", "--output", metavar="FILE", help="Write the page to FILE; - is standard output.")
@click.option("--terminal", is_flag=True, help="Plot loss, learning rate and tokens/s in the terminal instead.")
@json_option
@click.pass_obj
def report(session: Session, job_ids: tuple[str, ...], output: str | None, terminal: bool, as_json: bool) -> None:
    """Write an HTML page about a run: its curves, ranks over time, first cause, samples, options and environment.

    \b
      clusterrun report              your last job from this folder
      clusterrun report 5            report-5.html in this folder
      clusterrun report 5 7          both runs' curves over each other, and what differs
      clusterrun report 5 -o - >5.html
      clusterrun report 5 7 --terminal

    JOBID is a job id, a run id, a job name or last. The page is one file that loads nothing; of a running job it shows
    what is known now.
    """
    ui, now = Ui("report", as_json=as_json), time.time()
    if output is not None and (terminal or as_json):
        raise RequestError("-o cannot be combined with --terminal or --json", hint="clusterrun report --help")
    runs, difference = _collect(session.cluster(ui.note), job_ids or (LAST,), now)
    if as_json:
        ui.data({"runs": runs, "difference": difference})
    elif terminal:
        _plot(ui, runs)
    else:
        from clusterrun.report import page

        page.send(ui, page.report_page(runs, difference, now), output or f"report-{_file_name(runs)}.html")


def _collect(cluster: Cluster, words: Sequence[str], now: float) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return what is known of the runs that the words name, and of two runs what differs."""
    from clusterrun.report.collect import collect, find_difference

    named = find_targets(cluster, words, several=True)
    targets = list({target.key: target for target in named}.values())  # a job may be typed twice
    if len(targets) > _MOST_RUNS:
        raise RequestError(f"{len(targets)} runs are too many for a report", hint=f"give at most {_MOST_RUNS} jobs")
    records = [require_run(cluster, target, _ONLY_OURS) for target in targets]
    runs = [collect(cluster, state, now) for state in cluster.status(targets)]
    return runs, find_difference(*records) if len(records) == 2 else None


def _file_name(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the jobs of a report as part of a file's name."""
    handles = [re.sub(r"[^\w.+-]", "", run["handle"]) for run in runs]
    return "-".join(handles) if len(handles) <= 4 else f"{handles[0]}-and-{len(handles) - 1}-more"


def _plot(ui: Ui, runs: Sequence[Mapping[str, Any]]) -> None:
    """Print what matters of each run, then its curves over those of the others."""
    from clusterrun.report.draw import lines_of
    from clusterrun.terminal.plot import INSTALL, can_plot

    if not can_plot():
        raise RequestError("plots need version 6 of the Python package plotext", hint=INSTALL)
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    for run in runs:
        ui.say(f"{run['handle']}  {run['name']}  {run['state']}  {run['headline']}")
    charts = [(title, lines) for title, lines, _ in lines_of(runs) if title in _PLOTTED]
    for title, lines in charts:
        _plot_chart(ui, title, lines, runs, width)
    if not charts:
        ui.note("no loss, learning rate or speed was logged")


def _plot_chart(ui: Ui, title: str, lines: Sequence[Line], runs: Sequence[Mapping[str, Any]], width: int) -> None:
    """Print a chart, and which of its lines have no value, as that of a loss that was NaN from the start."""
    from clusterrun.terminal.plot import plot

    curves = {line.name: line.known for line in _plotted(lines, len(runs))}
    if curves:
        ui.say("", *plot(title, curves, x_label=runs[0]["curves_over"], width=width, height=_HEIGHT))
    without = [line.name for line in lines if not line.known]
    if without:
        ui.note(f"not plotted: {', '.join(without)}")


def _plotted(lines: Sequence[Line], runs: int) -> list[Line]:
    """Return the lines that have values; of several runs not those that few steps have."""
    return [line for line in lines if line.known and not (line.is_rare and runs > 1)]
