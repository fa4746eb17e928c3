"""Several jobs of one submit, each after the one before: ``--chain``, and the rungs of ``--ladder``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from clusterrun.base.errors import RequestError
from clusterrun.base.job import LOCAL
from clusterrun.base.units import plural
from clusterrun.cli.common.after import NOTHING, After, plan_after
from clusterrun.cli.common.submitting import How, cancel_runs, interrupt_deferred, note_checks, show_plans
from clusterrun.cluster import Cluster
from clusterrun.records.run_record import RunRecord
from clusterrun.submit.depend import AFTER_OK, depend
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.jobspec.spec import JobSpec
    from clusterrun.submit.ladder import Rung
    from clusterrun.submit.plan import Plan
    from clusterrun.submit.request import Request, SubmitArgs

MakePlan = Callable[[RunRecord | None], "Plan"]
"""Makes the plan of a job that starts after another one; of the first job without one."""


def submit_chain(ui: Ui, cluster: Cluster, jobs: Sequence[SubmitArgs], after: After, how: How) -> int:
    """Submit jobs, each to start when the one before has succeeded, the first ``after`` others. Return the exit code.

    All are checked before the first is submitted.
    """

    def plan(args: SubmitArgs, before: RunRecord | None) -> Plan:
        if before is None:
            return plan_after(cluster, args, after if args is jobs[0] else NOTHING)
        assert before.job_id is not None
        conditions = [f"{AFTER_OK}:{before.job_id.base}"]
        return cluster.plan(args, change=lambda request: depend(request, conditions))

    plans = [plan(args, None) for args in jobs]
    _refuse_several_places(plans)
    for each in plans:
        for notice in each.notices:
            ui.note(notice)
        note_checks(ui, cluster, each, how)
    if how.dry_run:
        ui.note(f"would submit {len(plans)} jobs, each starting after the previous one succeeds; nothing was written")
        ui.data(show_plans(ui, plans, as_script=how.as_script))
        return 0
    names = [each.record.name for each in plans]
    makers = [partial(plan, args) for args in jobs]
    return _run_in_order(ui, cluster, makers, f"{len(jobs)} jobs", names, how, report=_print_states)


def _refuse_several_places(plans: Sequence[Plan]) -> None:
    places = {(plan.record.scheduler, plan.record.cluster) for plan in plans}
    if len(places) > 1:
        raise RequestError(
            "the jobs of a chain cannot wait for each other: some run on Slurm and some on this machine",
            hint="add --scheduler slurm or --scheduler local",
        )


def _print_states(ui: Ui, cluster: Cluster, runs: Sequence[RunRecord]) -> None:
    from clusterrun.state.show import state_json

    if ui.as_json:
        ui.data([state_json(state) for state in cluster.states(runs)])


def submit_ladder(ui: Ui, cluster: Cluster, args: SubmitArgs, after: After, how: How) -> int:
    """Submit each rung after the one before, the first ``after`` other jobs. Return the exit code.

    The last and largest rung is checked before the first is submitted. At the end print the report.
    """
    from clusterrun.jobspec.spec import Task
    from clusterrun.submit.ladder import find_rungs

    whole = plan_after(cluster, args, after)
    rungs = find_rungs(whole.spec)
    plan = partial(_plan_rung, cluster, args, whole.spec, after)
    for notice in whole.notices:
        ui.note(notice)
    if not isinstance(whole.spec.work, Task):
        ui.note(f"each rung runs {whole.record.what} in full; use a small number of steps")
    if how.check:
        note_checks(ui, cluster, plan(rungs[-1], None), how)
    if how.dry_run:
        ui.note(f"would submit {plural(len(rungs), 'rung')} of {whole.record.name}; nothing was written")
        ui.data(show_plans(ui, [plan(rung, None) for rung in rungs], as_script=how.as_script))
        return 0
    what = f"a ladder of {len(rungs)} rungs ({whole.record.name})"
    names = [f"rung {rung.number}" for rung in rungs]
    makers = [partial(plan, rung) for rung in rungs]
    return _run_in_order(ui, cluster, makers, what, names, how, report=_print_report)


def _plan_rung(
    cluster: Cluster, args: SubmitArgs, spec: JobSpec, after: After, rung: Rung, before: RunRecord | None
) -> Plan:
    """Plan a rung of the job with the specification ``spec``; the first rung starts ``after`` other jobs."""
    from clusterrun.submit.ladder import rung_request

    def change(request: Request) -> Request:
        if before is None:
            return rung_request(depend(request, after.conditions), spec, rung, None)
        return rung_request(request, spec, rung, before.job_id)

    plan = cluster.plan(args, change=change)
    return plan._replace(record=replace(plan.record, rung_before=before.run_id if before else ""))


def _print_report(ui: Ui, cluster: Cluster, runs: Sequence[RunRecord]) -> None:
    from clusterrun.cli.common.show import first_cause
    from clusterrun.state.ladder import load_ladder

    report = load_ladder(cluster.states(runs), first_cause)
    ui.data(report.json())
    ui.say("", *report.lines())


def _run_in_order(
    ui: Ui, cluster: Cluster, plans: Sequence[MakePlan], what: str, names: Sequence[str], how: How, *,
    report: Callable[[Ui, Cluster, Sequence[RunRecord]], None],
) -> int:  # fmt: skip
    """Submit jobs, print them under these names, and if the user waits for their end ``report`` it.

    Return the exit code.
    """
    runs = _submit_each(ui, cluster, plans)
    _announce(ui, runs, what, names)
    if not how.wait:
        ui.data([_json(run) for run in runs])
    if not (how.follow or how.wait):
        return 0
    code = _follow_each(ui, cluster, runs, show_logs=how.follow)
    report(ui, cluster, runs)
    return code


def _submit_each(ui: Ui, cluster: Cluster, plans: Sequence[MakePlan]) -> list[RunRecord]:
    """Submit jobs in order, each with the one before; after a failure cancel those that were submitted."""
    runs: list[RunRecord] = []
    try:
        for make_plan in plans:
            plan = make_plan(runs[-1] if runs else None)
            with interrupt_deferred(ui, f"submit --recover {plan.record.run_id}"):
                runs.append(cluster.submit(plan, check=False))
    except BaseException:
        cancel_runs(ui, cluster, runs)
        raise
    return runs


def _follow_each(ui: Ui, cluster: Cluster, runs: Sequence[RunRecord], *, show_logs: bool) -> int:
    """Wait for each job in turn, until one is not done; return its exit code, else 0.

    After a failure the other jobs are cancelled. After an unknown end (75) the scheduler decides about them.
    """
    from clusterrun.cli.follow import follow_run, report_end

    for number, run in enumerate(runs, 1):
        code = follow_run(ui, cluster, run) if show_logs else report_end(ui, cluster.wait([run]))
        if code == 1:
            cancel_runs(ui, cluster, runs[number:])
        if code:
            return code
    return 0


def _announce(ui: Ui, runs: Sequence[RunRecord], what: str, names: Sequence[str]) -> None:
    """Print the submitted jobs, a line each, and the next commands."""
    where = "on this machine" if runs[0].scheduler == LOCAL else f"on {runs[0].cluster}"
    jobs = [str(run.job_id) for run in runs]
    job_width, name_width = max(map(len, jobs)), max(map(len, names))
    ui.say(f"Submitted {what} {where}; each starts after the previous one succeeds:")
    for name, run, job in zip(names, runs, jobs, strict=True):
        shape = f"{plural(run.world_size, 'rank')} on {plural(run.nodes, 'node')}"
        ui.say(f"  {name:<{name_width}}  job {job:<{job_width}}  {shape}")
    first, last, every = jobs[0], jobs[-1], " ".join(jobs)
    ui.say(f"  next    clusterrun status {last}     clusterrun logs {first} -f     clusterrun cancel {every}")


def _json(run: RunRecord) -> dict[str, object]:
    return {"job_id": str(run.job_id), "run_id": run.run_id, "run_dir": str(run.run_dir), "nodes": run.nodes,
            "ranks": run.world_size}  # fmt: skip
