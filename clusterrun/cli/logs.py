"""``logs``: show or follow what the ranks print."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from clusterrun.base.errors import RequestError
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import LAST, find_target
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.logfiles import RunLogs, find_logs
from clusterrun.cluster import Cluster
from clusterrun.logs.files import NotTheJobs, Source, Streams
from clusterrun.logs.frames import begin_frames
from clusterrun.logs.reading import read_lines
from clusterrun.logs.request import LogRequest, parse_request
from clusterrun.logs.show import show
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    import re


@click.command()
@click.argument("job_id", default=LAST, metavar="[JOBID]", shell_complete=complete.jobs)
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the job ends; exit 0 if the job succeeded.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option(
    "--rank", multiple=True, metavar="R", help="Only these ranks (for example 3, 0-7 or 0-3,8); may be repeated."
)
@click.option("--node", multiple=True, metavar="NAME", help="Only the ranks on this node; may be repeated.")
@click.option(
    "--attempt", metavar="N", help="Only this attempt (0 is the first), or one launch of its ranks (for example 0.2)."
)
@click.option(
    "--stream", type=click.Choice(["out", "err", "both"]), default="both", help="Only this stream; default: both."
)
@click.option("--grep", metavar="RE", help="Only lines that match this regular expression.")
@click.option("--exclude", metavar="RE", help="Leave out lines that match this regular expression.")
@click.option("--errors", is_flag=True, help="Only errors, with full tracebacks.")
@click.option(
    "--since", metavar="WHEN", help="Only lines written since WHEN: an age (10m, 2h, 1d), a time (14:05) or a date."
)
@click.option("--no-fold", is_flag=True, help="On a terminal, do not collapse identical lines from several ranks.")
@click.option("--raw", is_flag=True, help="Print the bytes unchanged, escape sequences included.")
@json_option
@click.pass_context
def logs(ctx: click.Context, /, job_id: str, as_json: bool, **flags: Any) -> None:
    """Show or follow the output of all ranks. Each line begins with its rank; ! marks a line from stderr.

    \b
      clusterrun logs -f                         your last job from this folder
      clusterrun logs 123 -f
      clusterrun logs 123 -n 50 --rank 0-3,8
      clusterrun logs 123 --since 10m --grep 'loss|Error'
      clusterrun logs 123 --errors --stream err

    JOBID may also be a job that was submitted with another tool, an array or one of its tasks (123_4), or a job name.
    Ctrl-C stops following; the job keeps running.
    """
    ui = Ui("logs", as_json=as_json)
    _refuse_pair(("--json", as_json), ("-f", flags["follow"]))
    _refuse_pair(("--json", as_json), ("--raw", flags["raw"]))
    _refuse_pair(("-f", flags["follow"]), ("--attempt", flags["attempt"] is not None))
    request = _request(flags, ctx.obj)
    cluster: Cluster = ctx.obj.cluster(ui.note)
    if request.resume is not None and request.resume.job:
        job_id = request.resume.job
    target = find_target(cluster, job_id, active=request.follow, newest=True)
    found = find_logs(cluster, target, follow=request.follow)
    if request.resume is not None:
        ui.log_bytes(begin_frames(target.text))
    sources, (labels, prefix) = found.select(request)
    if prefix is not None:
        request = _add_prefix(ui, request, prefix)
    if request.follow:
        from clusterrun.cli.follow import FollowedJobs, FollowedRun, follow

        if isinstance(found, RunLogs):
            ctx.exit(follow(ui, cluster, FollowedRun(ui, found, sources[0], request), request))
        ctx.exit(follow(ui, cluster, FollowedJobs(cluster.scheduler("slurm"), found, labels), request))
    _show(ui, sources, request)
    if not found.exist:
        line, code = found.explain_missing(cluster)
        ui.note(line)
        ctx.exit(code)


def _refuse_pair(first: tuple[str, bool], second: tuple[str, bool]) -> None:
    """Raise RequestError if both options are given."""
    if first[1] and second[1]:
        raise RequestError(f"{first[0]} and {second[0]} cannot be combined", hint="use one of them")


def _request(flags: dict[str, Any], session: Session) -> LogRequest:
    tty = sys.stdout.isatty() if session.terminal is None else session.terminal
    request = parse_request(flags, now=time.time(), tty=tty, environ=os.environ)
    return replace(request, resume=session.resume) if request.follow else request


def _show(ui: Ui, sources: list[Source], request: LogRequest) -> None:
    """Print the lines of sources. Raises NotTheJobs if other users own all of their files."""
    _note_refused(ui, sources, request.filter.stream)
    if not ui.as_json:
        for piece in show(sources, request):
            ui.log_bytes(piece)
        return
    data: list[dict[str, Any]] = []
    for source in sources:
        named = {"job_id": source.name} if source.name else {}
        data += [
            {**named, "stream": line.stream, "rank": line.rank, "text": line.text}
            for line in read_lines(source, request)
        ]
    ui.data(data)


def _note_refused(ui: Ui, sources: list[Source], stream: Streams) -> None:
    errors: list[NotTheJobs] = []
    existing = 0
    for source in sources:
        errors += source.find_refused(stream)
        existing += sum(path.exists() for _, path in source.files(stream))
    if errors and len(errors) == existing:
        raise errors[0]
    for error in errors:
        ui.note(error.message)


def _add_prefix(ui: Ui, request: LogRequest, prefix: re.Pattern[str]) -> LogRequest:
    """Return the request with a pattern for the prefix of ranks that share a label."""
    if request.filter.grep is not None:
        raise RequestError(
            "--rank and --grep cannot be combined for this log: not every line shows its rank",
            hint=r"put the rank into the pattern: --grep '^\[rank3\]:.*RE'",
        )
    ui.note("not every line of this log shows its rank; showing only the lines that begin with `[rankN]:`")
    return replace(request, filter=replace(request.filter, grep=prefix))
