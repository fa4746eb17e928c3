"""``logs``: what the ranks print."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Any, Literal

import click

from clusterrun.cli.follow import exit_code, follow_to_end, no_log, print_pieces
from clusterrun.cli.logfiles import Ours, Theirs, check_readable, files_of, logs_of, source_of
from clusterrun.cli.session import json_option
from clusterrun.cluster import Cluster
from clusterrun.errors import RequestError
from clusterrun.job import Outcome
from clusterrun.logs import LineFilter, Look, Source, compile_grep, look_of, show
from clusterrun.logs.reading import line_reader, read, refused
from clusterrun.logs.select import Choice, choose, parse_ranks, parse_since
from clusterrun.state.filters import refuse_parts
from clusterrun.terminal.ui import Ui


@click.command()
@click.argument("job_id", metavar="JOBID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over; exit with its outcome.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--rank", "ranks", multiple=True, metavar="R", help="Only these ranks: 3, 0-7 or 0-3,8; may be repeated.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Only the ranks on this node; may be repeated.")
@click.option("--stream", type=click.Choice(["out", "err", "both"]), default="both", help="Which stream.")
@click.option("--grep", metavar="RE", help="Only lines that match.")
@click.option("--errors", is_flag=True, help="Only lines that look like errors, tracebacks whole.")
@click.option("--since", metavar="WHEN", help="Only what was written since then: 10m, 2h, 1d, 14:05 or a date.")
@click.option("--no-fold", is_flag=True, help="On a terminal: every rank's line, also where many ranks say the same.")
@click.option("--raw", is_flag=True, help="The bytes as they are, escape sequences included.")
@json_option
@click.pass_context
def logs(
    ctx: click.Context, job_id: str, follow: bool, lines: int | None, ranks: tuple[str, ...], nodes: tuple[str, ...],
    stream: Literal['out', 'err', 'both'], grep: str | None, errors: bool, since: str | None, no_fold: bool, raw: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Show or follow what the ranks print: each line with its rank, those of err marked by !.

    \b
      clusterrun logs 123 -f
      clusterrun logs 123 -n 50 --rank 0-3,8
      clusterrun logs 123 --since 10m --grep 'loss|Error'
      clusterrun logs 123 --errors --stream err

    JOBID may be any job that you may read: of another tool, an array's task (123_4) or the whole array.
    Ctrl-C ends the following, never the job.
    """
    ui = Ui("logs", as_json=as_json)
    if as_json and follow:
        raise RequestError("--json and -f do not go together", hint="leave one of them out")
    if as_json and raw:
        raise RequestError("--json and --raw do not go together", hint="leave one of them out")
    want = LineFilter(stream, compile_grep(grep) if grep is not None else None, errors)
    wanted = parse_ranks(ranks)
    begin = parse_since(since, time.time()) if since is not None else None
    look = look_of(sys.stdout.isatty(), os.environ, fold=not no_fold, raw=raw)
    cluster: Cluster = ctx.obj.cluster(ui.note)
    found = logs_of(cluster, job_id)
    if isinstance(found, Theirs):
        ctx.exit(_theirs(ui, cluster, found, wanted, nodes, want, look, follow=follow, tail=lines, since=begin))
    ctx.exit(_ours(ui, cluster, found, wanted, nodes, want, look, follow=follow, tail=lines, since=begin))


def _ours(
    ui: Ui, cluster: Cluster, ours: Ours, ranks: frozenset[int], nodes: tuple[str, ...], want: LineFilter, look: Look,
    *,
    follow: bool, tail: int | None, since: float | None,
) -> int:  # fmt: skip
    for path in ours.paths:
        check_readable(path, ours.job)
    choice = ours.choice(ranks, nodes)
    source, want = ours.source(choice), _with_prefix(ui, want, choice)
    there = any(path.exists() for path in ours.paths)
    if not there and ours.job != ours.run.job_id:
        refuse_parts([str(ours.job)], cluster.states([ours.run]))
    if since is not None and there and not source.ticks:
        raise _timeless(str(ours.job))
    if follow:
        return follow_to_end(
            ui, cluster, ours.run, job=ours.job, source=source, want=want, look=look, tail=tail, since=since
        )
    _show(ui, [source], want, look, tail=tail, since=since)
    if there:
        return 0
    (state,) = cluster.states([ours.run])
    if state.status.is_over:
        ui.note(no_log(cluster, ours.run, ours.job, state))
        return exit_code([state])
    if state.status.state in ("PENDING", "UNKNOWN"):
        ui.note(f"no log yet: job {ours.job} is {state.status.state} {state.status.reason}".rstrip())
    else:
        ui.note(f"no log of job {ours.job}, which is {state.status.state}: {ours.paths[0]} is not there")
    return 0


def _theirs(
    ui: Ui, cluster: Cluster, theirs: Theirs, ranks: frozenset[int], nodes: tuple[str, ...], want: LineFilter,
    look: Look, *,
    follow: bool, tail: int | None, since: float | None,
) -> int:  # fmt: skip
    if since is not None:
        raise _timeless(str(theirs.job))
    if want.stream == "err" and all(place.err is None for place in theirs.known):
        raise RequestError(
            f"job {theirs.job} writes both streams into one file", hint="leave --stream out; --errors finds complaints"
        )
    there = theirs.there()
    files = [path for place in there for path in files_of(place)]
    for place in there:
        for path in files_of(place):
            check_readable(path, place.job)
    if (ranks or nodes) and follow and not files:
        raise RequestError(
            f"job {theirs.job} has no log yet, so it is not known how its lines tell their ranks",
            hint="ask for ranks once it runs",
        )
    choice = choose(None, ranks, nodes, files=files)
    want = _with_prefix(ui, want, choice)
    if follow:
        from clusterrun.cli.follow_external import follow_theirs

        scheduler = cluster.scheduler("slurm")
        return follow_theirs(ui, scheduler, theirs, choice, want, look, tail=tail)
    sources = [source_of(place, choice, named=theirs.is_array) for place in there]
    _show(ui, sources, want, look, tail=tail, since=None)
    if there:
        return 0
    states = cluster.status([str(theirs.job)])
    places = ", ".join(str(place.out) for place in theirs.known[:2])
    ui.note(f"no log of job {theirs.job}, which is {states[0].status.state}: {places} is not there")
    return exit_code(states) if all(state.status.outcome is not Outcome.RUNNING for state in states) else 0


def _show(
    ui: Ui, sources: list[Source], want: LineFilter, look: Look, *, tail: int | None, since: float | None
) -> None:
    """Show what the sources have; raises NotTheJobs where all of it belongs to somebody whose job it is not."""
    strange = [error for source in sources for error in refused(source, want)]
    if strange and len(strange) == sum(path.exists() for one in sources for _, path in one.files(want.stream)):
        raise strange[0]
    for error in strange:
        ui.note(error.message)
    if not ui.as_json:
        print_pieces(ui, show(sources, want, look, tail=tail, since=since))
        return
    data: list[dict[str, Any]] = []
    for source in sources:
        lines = read(source, want, partial(line_reader, source=source, want=want), tail=tail, since=since)
        named = {"job_id": source.name} if source.name else {}
        data += [{**named, "stream": line.stream, "rank": line.rank, "text": line.text} for line in lines]
    ui.data(data)


def _with_prefix(ui: Ui, want: LineFilter, choice: Choice) -> LineFilter:
    """What is wanted where ranks are told by the text of their lines."""
    if choice.prefix is None:
        return want
    if want.grep is not None:
        raise RequestError(
            "--rank and --grep do not go together here: lines say their rank in their text only",
            hint=r"put it into the pattern: --grep '^\[rank3\]:.*RE'",
        )
    ui.note("one label stands for several ranks here: shown are the lines that begin with [rankN]:")
    return LineFilter(want.stream, choice.prefix, want.errors)


def _timeless(job: str) -> RequestError:
    return RequestError(
        f"--since: nothing tells when a line of job {job} was written: no clock was kept beside its logs",
        hint="use -n 200, or --grep for the times that its lines bear",
    )
