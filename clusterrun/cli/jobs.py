"""``status``, ``list`` and ``wait``: how jobs stand."""

from __future__ import annotations

import click

from clusterrun.cli.follow import exit_code, first_failure, wait_to_end
from clusterrun.cli.options import json_option
from clusterrun.cluster import Cluster
from clusterrun.errors import NoSuchJob
from clusterrun.job import Outcome
from clusterrun.ui import COLUMNS, Ui, state_json, state_lines, state_row


@click.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="JOBID...")
@click.option("--explain", is_flag=True, help="Say where each value that was asked came from.")
@json_option
@click.pass_context
def status(ctx: click.Context, job_ids: tuple[str, ...], explain: bool, as_json: bool) -> None:
    """How jobs stand, in Slurm's words, and who says so. JOBID is a job id or a run id.

    \b
      clusterrun status 123
      clusterrun status 123 124 --json

    Exit 0 whatever the state, 75 where it is not known, 4 where there is no such job.
    """
    ui = Ui("status", as_json=as_json)
    states = Cluster(tell=ui.note).status(job_ids)
    ui.data([state_json(state) for state in states])
    for state in states:
        ui.say(*state_lines(state, explain=explain))
        if state.record and state.status.outcome is Outcome.FAILED and (first := first_failure(state.record)):
            ui.say(f"{'first':>9}  {first}")
    if any(state.status.outcome in (Outcome.UNKNOWN, Outcome.LOST) for state in states):
        ctx.exit(exit_code(states))


@click.command(name="list")
@click.option("--all", "everything", is_flag=True, help="The finished ones too.")
@json_option
def list_(everything: bool, as_json: bool) -> None:
    """The jobs that are not over, from any folder of yours; with --all the finished ones too.

    \b
      clusterrun list
      clusterrun list --all --json
    """
    ui = Ui("list", as_json=as_json)
    states = Cluster(tell=ui.note).listing(everything=everything)
    ui.data([state_json(state) for state in states])
    if states:
        ui.table(COLUMNS, [state_row(state) for state in states])
    else:
        ui.note("no jobs" if everything else "no jobs that are not over; `clusterrun list --all` shows the others")


@click.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="JOBID...")
@json_option
@click.pass_context
def wait(ctx: click.Context, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Wait until jobs are over: exit 0 when all are done, 1 when one failed, 75 when one is lost or unknown.

    \b
      clusterrun wait 123 && ./evaluate.sh
    """
    ui = Ui("wait", as_json=as_json)
    cluster = Cluster(tell=ui.note)
    runs = [cluster.run(job_id) for job_id in job_ids]
    known = [run for run in runs if run is not None]
    if len(known) < len(runs):
        foreign = job_ids[runs.index(None)]
        cluster.status([foreign])
        raise NoSuchJob(
            f"job {foreign} was not submitted by clusterrun", hint="only runs of clusterrun can be waited for"
        )
    ctx.exit(wait_to_end(ui, cluster, known))


globals()["list"] = list_
