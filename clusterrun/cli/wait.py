"""``wait``: wait until jobs end."""

from __future__ import annotations

import click

from clusterrun.base.units import plural
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import LAST, find_targets
from clusterrun.cli.common.session import json_option
from clusterrun.state import filters
from clusterrun.state.show import state_json
from clusterrun.terminal.ui import Ui


@click.command()
@click.argument("job_ids", nargs=-1, metavar="[JOBID]...", shell_complete=complete.active_jobs)
@json_option
@click.pass_context
def wait(ctx: click.Context, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Wait for jobs to end, for the last one without JOBID.

    Exit 0 if all succeed, 1 if one fails, 75 if one is lost or its outcome is unknown.

    \b
      clusterrun wait 123 && ./evaluate.sh
      clusterrun wait 123 124_7

    Works for any job that you can see, including array tasks. Ctrl-C stops the wait; the jobs keep running.
    """
    from clusterrun.cli.follow import report_end_of  # `list` and `status` read no logs
    from clusterrun.state.watch import wait_for_end

    ui = Ui("wait", as_json=as_json)
    cluster = ctx.obj.cluster(ui.note)
    named = find_targets(cluster, job_ids or (LAST,), several=True, active=True, newest=True)  # `submit …; wait last`
    parts = [target for target in named if target.run is not None and target.is_part]
    if parts:
        cluster.status(parts)  # refuse a task of a run that is no array, instead of waiting for the whole run
    with ui.working(f"waiting for {plural(len(named), 'job')}"):
        states = wait_for_end(cluster.watch(cluster.live_targets(named)), ui.note)
    ui.data([state_json(state) for state in states])
    ctx.exit(report_end_of(ui, cluster, filters.collapse(states)))
