"""``resume``: continue a run that ended early."""

from __future__ import annotations

import click

from clusterrun.cli.common.names import find_ids
from clusterrun.cli.common.session import json_option
from clusterrun.cli.common.submitting import announce, interrupt_deferred
from clusterrun.terminal.ui import Ui


@click.command()
@click.argument("job_id", metavar="JOBID")
@click.option(
    "--secret", "secrets", multiple=True, metavar="NAME",
    help="With --remote, send the secret NAME from this shell's environment; repeatable.",
)  # fmt: skip
@json_option
@click.pass_context
def resume(ctx: click.Context, job_id: str, secrets: tuple[str, ...], as_json: bool) -> None:
    """Continue a stopped, cancelled or failed run from its checkpoints.

    \b
      clusterrun resume 123

    A new job continues the run in the same folder with the same options. A built-in task loads its newest checkpoint;
    your own script is started with the arguments of --resume-args. JOBID may also be a run id, a job name or last.
    """
    ui = Ui("resume", as_json=as_json)
    cluster = ctx.obj.cluster(ui.note)
    (job_id,) = find_ids(cluster, [job_id])
    run = cluster.run(job_id) if secrets else None
    if run is not None and run.mine:
        from clusterrun.submit.checks import check_recorded_secrets

        check_recorded_secrets(secrets, run)
    with interrupt_deferred(ui, f"resume {job_id}"):
        announce(ui, cluster.resume(job_id), data=True)
