"""``logs``: show or follow what the ranks print."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from clusterrun.base.errors import RequestError
from clusterrun.base.job import Outcome
from clusterrun.cli.common.names import LAST, find_ids
from clusterrun.cli.common.session import json_option
from clusterrun.cli.follow import exit_code, follow_run, format_missing_log, print_pieces
from clusterrun.cli.logfiles import ExternalLogs, RunLogs, check_readable, external_source, files_of, find_logs
from clusterrun.cluster import Cluster
from clusterrun.logs.files import Source
from clusterrun.logs.frames import begin_frames
from clusterrun.logs.reading import read_lines
from clusterrun.logs.request import FLAGS, Flag, LogRequest, RankFilter, filter_external, parse_request
from clusterrun.logs.show import show
from clusterrun.state.filters import refuse_parts
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.cli.common.link import Link

F = TypeVar("F", bound=Callable[..., Any])


def _flag_options(command: F) -> F:
    """Add an option for each of ``FLAGS``."""
    for flag in reversed(FLAGS):
        command = _option(flag)(command)
    return command


def _option(flag: Flag) -> Callable[[F], F]:
    if not flag.metavar and not flag.choices:
        return click.option(*flag.names, flag.key, is_flag=True, help=flag.help)
    kind: Any = click.STRING
    if flag.choices:
        kind = click.Choice(flag.choices)
    elif flag.least is not None:
        kind = click.IntRange(min=flag.least)
    default = flag.choices[-1] if flag.choices else () if flag.repeated else None
    return click.option(
        *flag.names, flag.key, type=kind, multiple=flag.repeated, default=default, metavar=flag.metavar or None,
        help=flag.help,
    )  # fmt: skip


@click.command()
@click.argument("job_id", default=LAST, metavar="[JOBID]")
@_flag_options
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
    for option in ("follow", "raw"):
        if as_json and flags[option]:
            raise RequestError(
                f"--json and {'-f' if option == 'follow' else '--raw'} cannot be combined", hint="use one of them"
            )
    if flags["follow"] and flags["attempt"] is not None:
        raise RequestError("-f and --attempt cannot be combined", hint="use one of them")
    link: Link | None = ctx.obj.link
    tty = sys.stdout.isatty() if link is None else link.terminal
    request = parse_request(flags, now=time.time(), tty=tty, environ=os.environ)
    if link is not None and request.follow:
        request = replace(request, resume=link.resume)
    cluster: Cluster = ctx.obj.cluster(ui.note)
    if request.resume is not None and request.resume.job:
        job_id = request.resume.job
    (job_id,) = find_ids(cluster, [job_id], active=request.follow, newest=True)
    found = find_logs(cluster, job_id, follow=request.follow)
    if request.resume is not None:
        ui.log_bytes(begin_frames(job_id))
    if isinstance(found, ExternalLogs):
        ctx.exit(_show_external_logs(ui, cluster, found, request))
    ctx.exit(_show_run_logs(ui, cluster, found, request))


def _show_run_logs(ui: Ui, cluster: Cluster, logs: RunLogs, request: LogRequest) -> int:
    for path in logs.paths:
        check_readable(path, logs.job)
    ranks = logs.filter_ranks(request)
    source, request = logs.source(ranks, request.attempt), _add_prefix(ui, request, ranks)
    exists = any(path.exists() for path in logs.paths)
    if not exists and logs.job != logs.run.job_id:
        refuse_parts([str(logs.job)], cluster.states([logs.run]))
    if request.since is not None and exists and not source.ticks:
        raise _no_clock(str(logs.job))
    if request.follow:
        return follow_run(ui, cluster, logs.run, job=logs.job, source=source, request=request)
    _show(ui, [source], request)
    if exists:
        return 0
    (state,) = cluster.states([logs.run])
    if state.status.is_over:
        ui.note(format_missing_log(cluster, logs.run, logs.job, state))
        return exit_code([state])
    if state.status.state in ("PENDING", "UNKNOWN"):
        reason = f" ({state.status.reason})" if state.status.reason else ""
        ui.note(f"no log yet: job {logs.job} is {state.status.state}{reason}")
    else:
        ui.note(f"no log for job {logs.job} ({state.status.state}): {logs.paths[0]} does not exist")
    return 0


def _show_external_logs(ui: Ui, cluster: Cluster, logs: ExternalLogs, request: LogRequest) -> int:
    if request.since is not None:
        raise _no_clock(str(logs.job))
    if request.attempt:
        raise RequestError(
            "--attempt works only for jobs submitted by clusterrun", hint="omit --attempt to show the whole log"
        )
    if request.filter.stream == "err" and all(location.err is None for location in logs.locations):
        raise RequestError(
            f"job {logs.job} writes stdout and stderr to one file", hint="omit --stream, or use --errors to find errors"
        )
    existing = logs.existing()
    files = [path for location in existing for path in files_of(location)]
    for location in existing:
        for path in files_of(location):
            check_readable(path, location.job)
    if (request.ranks or request.nodes) and request.follow and not files:
        raise RequestError(
            f"job {logs.job} has no log yet, so its lines cannot be selected by rank",
            hint="use --rank after the job has started",
        )
    ranks = filter_external(request.ranks, request.nodes, files)
    request = _add_prefix(ui, request, ranks)
    if request.follow:
        from clusterrun.cli.follow_external import follow_external

        return follow_external(ui, cluster.scheduler("slurm"), logs, ranks, request)
    _show(ui, [external_source(location, ranks, named=logs.is_array) for location in existing], request)
    if existing:
        return 0
    states = cluster.status([str(logs.job)])
    paths = ", ".join(str(location.out) for location in logs.locations[:2])
    verb = "does" if len(logs.locations) == 1 else "do"
    ui.note(f"no log for job {logs.job} ({states[0].status.state}): {paths} {verb} not exist")
    return exit_code(states) if all(state.status.outcome is not Outcome.RUNNING for state in states) else 0


def _show(ui: Ui, sources: list[Source], request: LogRequest) -> None:
    """Print the lines of sources. Raises NotTheJobs if other users own all of their files."""
    errors = [error for source in sources for error in source.find_refused(request.filter.stream)]
    if errors and len(errors) == sum(path.exists() for one in sources for _, path in one.files(request.filter.stream)):
        raise errors[0]
    for error in errors:
        ui.note(error.message)
    if not ui.as_json:
        print_pieces(ui, show(sources, request))
        return
    data: list[dict[str, Any]] = []
    for source in sources:
        named = {"job_id": source.name} if source.name else {}
        data += [
            {**named, "stream": line.stream, "rank": line.rank, "text": line.text}
            for line in read_lines(source, request)
        ]
    ui.data(data)


def _add_prefix(ui: Ui, request: LogRequest, ranks: RankFilter) -> LogRequest:
    """Return the request with a pattern for the prefix of the ranks, if they share a label."""
    if ranks.prefix is None:
        return request
    if request.filter.grep is not None:
        raise RequestError(
            "--rank and --grep cannot be combined for this log: not every line shows its rank",
            hint=r"put the rank into the pattern: --grep '^\[rank3\]:.*RE'",
        )
    ui.note("not every line of this log shows its rank; showing only the lines that begin with `[rankN]:`")
    return replace(request, filter=replace(request.filter, grep=ranks.prefix))


def _no_clock(job: str) -> RequestError:
    return RequestError(
        f"--since: the log lines of job {job} have no timestamps, and clusterrun recorded none",
        hint="use -n 200 or --grep PATTERN instead",
    )
