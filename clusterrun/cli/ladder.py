"""``submit --ladder``: submit the rungs of a job, follow them, and print their report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterrun.cli.follow import follow_run, report_end
from clusterrun.cli.show import first_cause
from clusterrun.cli.submit import cancel_runs, interrupt_deferred, show_plans
from clusterrun.cluster import Cluster
from clusterrun.job import LOCAL
from clusterrun.jobspec.spec import Task
from clusterrun.records.run_record import RunRecord
from clusterrun.state.ladder import load_ladder
from clusterrun.submit.ladder import Rung, find_rungs, rung_request
from clusterrun.terminal.ui import Ui
from clusterrun.terminal.units import plural

if TYPE_CHECKING:
    from clusterrun.submit.plan import Plan
    from clusterrun.submit.request import SubmitArgs


def submit_ladder(
    ui: Ui, cluster: Cluster, args: SubmitArgs, *, dry_run: bool, follow: bool, wait: bool, check: bool = True,
    as_script: bool = False,
) -> int:  # fmt: skip
    """Submit each rung after the one before; with ``follow`` or ``wait`` print the report. Return the exit code.

    The last and largest rung is checked before the first is submitted, unless ``check`` is False.
    """
    whole = cluster.plan(args)
    rungs = find_rungs(whole.spec)
    for notice in whole.notices:
        ui.note(notice)
    if not isinstance(whole.spec.work, Task):
        ui.note(f"each rung runs {whole.record.what} in full; use a small number of steps")

    def plan(rung: Rung, before: RunRecord | None) -> Plan:
        job = before.job_id if before else None
        made = cluster.plan(args, change=lambda request: rung_request(request, whole.spec, rung, job))
        return made._replace(record=replace(made.record, rung_before=before.run_id if before else ""))

    for line in cluster.check(plan(rungs[-1], None)) if check else ():
        ui.note(line)
    if dry_run:
        ui.note(f"would submit {plural(len(rungs), 'rung')} of {whole.record.name}; nothing was written")
        ui.data(show_plans(ui, [plan(rung, None) for rung in rungs], as_script=as_script))
        return 0
    runs: list[RunRecord] = []
    try:
        for rung in rungs:
            one = plan(rung, runs[-1] if runs else None)
            with interrupt_deferred(ui, f"submit --recover {one.record.run_id}") as interrupted:
                runs.append(cluster.submit(one, check=False))
            if interrupted:
                raise KeyboardInterrupt
    except BaseException:
        cancel_runs(ui, cluster, runs)
        raise
    _announce(ui, runs, data=not wait)
    if not (follow or wait):
        return 0
    code = _follow(ui, cluster, runs, show_logs=follow)
    report = load_ladder(cluster.states(runs), first_cause)
    ui.data(report.json())
    ui.say("", *report.lines())
    return code


def _follow(ui: Ui, cluster: Cluster, runs: Sequence[RunRecord], *, show_logs: bool) -> int:
    """Wait for each rung in turn, until one is not done; return its exit code, else 0.

    After a failure the other rungs are cancelled. After an unknown end (75) the scheduler decides about them.
    """
    for number, run in enumerate(runs):
        code = follow_run(ui, cluster, run) if show_logs else report_end(ui, cluster.wait([run]))
        if code:
            cancel_runs(ui, cluster, runs[number + 1 :] if code == 1 else [])
            return code
    return 0


def _announce(ui: Ui, runs: Sequence[RunRecord], *, data: bool) -> None:
    where = "on this machine" if runs[0].scheduler == LOCAL else f"on {runs[0].cluster}"
    jobs = [str(run.job_id) for run in runs]
    width, first, last = max(map(len, jobs)), jobs[0], jobs[-1]
    ui.say(f"Submitted a ladder of {len(runs)} rungs ({runs[-1].name}) {where}; each starts after the one before it:")
    for number, (run, job) in enumerate(zip(runs, jobs, strict=True), 1):
        shape = f"{plural(run.world_size, 'rank')} on {plural(run.nodes, 'node')}"
        ui.say(f"  rung {number}  job {job:<{width}}  {shape}")
    ui.say(f"  next    clusterrun status {last}     clusterrun logs {first} -f     clusterrun cancel {' '.join(jobs)}")
    if data:
        ui.data([
            {"job_id": str(run.job_id), "run_id": run.run_id, "run_dir": str(run.run_dir), "nodes": run.nodes,
             "ranks": run.world_size} for run in runs
        ])  # fmt: skip
