"""``submit --ladder``: submit the rungs of a job, follow them, and print their report."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from clusterrun.base.units import plural
from clusterrun.cli.common.after import NOTHING, After, plan_after
from clusterrun.cli.common.chain import announce_each, describe, follow_each, submit_each
from clusterrun.cli.common.show import first_cause
from clusterrun.cli.common.submitting import show_plans
from clusterrun.cluster import Cluster
from clusterrun.jobspec.spec import Task
from clusterrun.records.run_record import RunRecord
from clusterrun.state.ladder import load_ladder
from clusterrun.submit.depend import depend
from clusterrun.submit.ladder import Rung, find_rungs, rung_request
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.submit.plan import Plan
    from clusterrun.submit.request import SubmitArgs


def submit_ladder(
    ui: Ui, cluster: Cluster, args: SubmitArgs, after: After = NOTHING, *, dry_run: bool, follow: bool, wait: bool,
    check: bool = True, as_script: bool = False,
) -> int:  # fmt: skip
    """Submit each rung after the one before, the first ``after`` other jobs. Return the exit code.

    With ``follow`` or ``wait`` print the report.

    The last and largest rung is checked before the first is submitted, unless ``check`` is False.
    """
    whole = plan_after(cluster, args, after)
    rungs = find_rungs(whole.spec)
    for notice in whole.notices:
        ui.note(notice)
    if not isinstance(whole.spec.work, Task):
        ui.note(f"each rung runs {whole.record.what} in full; use a small number of steps")

    def plan(rung: Rung, before: RunRecord | None) -> Plan:
        job = before.job_id if before else None
        conditions = after.conditions if before is None else ()
        change = partial(rung_request, spec=whole.spec, rung=rung, before=job)
        made = cluster.plan(args, change=lambda request: change(depend(request, conditions)))
        return made._replace(record=replace(made.record, rung_before=before.run_id if before else ""))

    for line in cluster.check(plan(rungs[-1], None)) if check else ():
        ui.note(line)
    if dry_run:
        ui.note(f"would submit {plural(len(rungs), 'rung')} of {whole.record.name}; nothing was written")
        ui.data(show_plans(ui, [plan(rung, None) for rung in rungs], as_script=as_script))
        return 0
    runs = submit_each(ui, cluster, [partial(plan, rung) for rung in rungs])
    what = f"a ladder of {len(runs)} rungs ({runs[-1].name})"
    announce_each(ui, runs, what, [f"rung {number}" for number in range(1, len(runs) + 1)])
    if not wait:
        ui.data([describe(run) for run in runs])
    if not (follow or wait):
        return 0
    code = follow_each(ui, cluster, runs, show_logs=follow)
    report = load_ladder(cluster.states(runs), first_cause)
    ui.data(report.json())
    ui.say("", *report.lines())
    return code
