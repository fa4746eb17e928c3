"""``logs``: what the ranks print."""

from __future__ import annotations

from typing import Literal

import click

from clusterrun import store as records
from clusterrun.cli.follow import exit_code, follow_to_end
from clusterrun.cli.options import json_option
from clusterrun.cluster import Cluster
from clusterrun.errors import NoSuchJob, RequestError
from clusterrun.job import JobId, is_run_id
from clusterrun.logs import compile_grep, log_paths, read_lines, select_tasks
from clusterrun.ui import Ui


@click.command()
@click.argument("job_id", metavar="JOBID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over; exit with its outcome.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option(
    "--rank", "ranks", type=click.IntRange(min=0), multiple=True, metavar="R", help="Only this rank; may be repeated."
)
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Only the ranks on this node; may be repeated.")
@click.option("--stream", type=click.Choice(["out", "err", "both"]), default="both", help="Which stream.")
@click.option("--grep", metavar="RE", help="Only lines that match.")
@json_option
@click.pass_context
def logs(
    ctx: click.Context, job_id: str, follow: bool, lines: int | None, ranks: tuple[int, ...], nodes: tuple[str, ...],
    stream: Literal['out', 'err', 'both'], grep: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Show or follow what the ranks print: each line with its rank, those of err marked by !.

    \b
      clusterrun logs 123 -f
      clusterrun logs 123 -n 50 --rank 3 --rank 4
      clusterrun logs 123 --grep 'loss|Error' --stream err

    Ctrl-C ends the following, never the job.
    """
    ui = Ui("logs", as_json=as_json)
    if as_json and follow:
        raise RequestError("--json and -f do not go together", hint="leave one of them out")
    cluster = Cluster(tell=ui.note)
    pattern = compile_grep(grep) if grep is not None else None
    run = cluster.run(job_id)
    if run is None:
        cluster.status([job_id])  # says that there is no such job, where there is none
        raise NoSuchJob(
            f"job {job_id} was not submitted by clusterrun",
            hint=f"scontrol show job {JobId.parse(job_id)} tells its StdOut",
        )
    job = run.job_id
    if job is None:
        raise NoSuchJob(f"run {run.run_id} has no job yet", hint=f"clusterrun submit --recover {run.run_id}")
    if not is_run_id(job_id):
        job = JobId.parse(job_id)
    folders = records.attempts(run)
    start = records.read_json(folders[-1] / "start.json") if folders else None
    chosen = select_tasks(start, ranks, nodes) if ranks or nodes else None
    if ranks and start is None and max(ranks) >= run.world_size:
        raise RequestError(f"there is no rank {max(ranks)}", hint=f"the ranks are 0 to {run.world_size - 1}")
    if follow:
        ctx.exit(follow_to_end(ui, cluster, run, tail=lines, ranks=chosen, stream=stream, grep=pattern))
    paths = log_paths(run.logs, job)
    width, shown = len(str(run.world_size - 1)), []
    found = False
    for line in read_lines(paths, stream=stream, ranks=chosen, tail=lines, grep=pattern, world_size=run.world_size):
        found = True
        if as_json:
            shown.append({"stream": line.stream, "rank": line.rank, "text": line.text})
        else:
            ui.log_line(line, width)
    ui.data(shown)
    if not found and not any(path.exists() for path in paths):
        state = cluster.states([run])[0]
        ui.note(f"no log yet: job {job} is {state.status.state} {state.status.reason}".rstrip())
        ctx.exit(exit_code([state]) if state.status.is_over else 0)
