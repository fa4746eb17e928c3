"""Several jobs of one submit, each after the one before: ``--chain``, and the rungs of a ladder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from clusterrun.base.errors import RequestError
from clusterrun.base.job import LOCAL
from clusterrun.base.units import plural
from clusterrun.cli.common.after import NOTHING, After, plan_after
from clusterrun.cli.common.submitting import cancel_runs, interrupt_deferred, show_plans
from clusterrun.cli.follow import follow_run, report_end
from clusterrun.cluster import Cluster
from clusterrun.records.run_record import RunRecord
from clusterrun.state.show import state_json
from clusterrun.submit.depend import AFTER_OK, depend
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.submit.plan import Plan
    from clusterrun.submit.request import SubmitArgs

MakePlan = Callable[[RunRecord | None], "Plan"]
"""Makes the plan of a job that starts after another one; of the first job without one."""


def submit_chain(
    ui: Ui, cluster: Cluster, jobs: Sequence[SubmitArgs], after: After, *, dry_run: bool, as_script: bool, check: bool,
    follow: bool, wait: bool,
) -> int:  # fmt: skip
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
    if len({(one.record.scheduler, one.record.cluster) for one in plans}) > 1:
        raise RequestError(
            "the jobs of a chain cannot wait for each other: some run on Slurm and some on this machine",
            hint="add --scheduler slurm or --scheduler local",
        )
    for one in plans:
        for line in (*one.notices, *(cluster.check(one) if check else ())):
            ui.note(line)
    if dry_run:
        ui.note(f"would submit {len(plans)} jobs, each starting after the previous one succeeds; nothing was written")
        ui.data(show_plans(ui, plans, as_script=as_script))
        return 0
    runs = submit_each(ui, cluster, [partial(plan, args) for args in jobs])
    announce_each(ui, runs, f"{len(runs)} jobs", [run.name for run in runs])
    if not wait:
        ui.data([describe(run) for run in runs])
    if not (follow or wait):
        return 0
    code = follow_each(ui, cluster, runs, show_logs=follow)
    if wait:
        ui.data([state_json(state) for state in cluster.states(runs)])
    return code


def submit_each(ui: Ui, cluster: Cluster, plans: Sequence[MakePlan]) -> list[RunRecord]:
    """Submit jobs in order, each with the one before; after a failure cancel those that were submitted."""
    runs: list[RunRecord] = []
    try:
        for plan in plans:
            one = plan(runs[-1] if runs else None)
            with interrupt_deferred(ui, f"submit --recover {one.record.run_id}") as interrupted:
                runs.append(cluster.submit(one, check=False))
            if interrupted:
                raise KeyboardInterrupt
    except BaseException:
        cancel_runs(ui, cluster, runs)
        raise
    return runs


def follow_each(ui: Ui, cluster: Cluster, runs: Sequence[RunRecord], *, show_logs: bool) -> int:
    """Wait for each job in turn, until one is not done; return its exit code, else 0.

    After a failure the other jobs are cancelled. After an unknown end (75) the scheduler decides about them.
    """
    for number, run in enumerate(runs):
        code = follow_run(ui, cluster, run) if show_logs else report_end(ui, cluster.wait([run]))
        if code:
            cancel_runs(ui, cluster, runs[number + 1 :] if code == 1 else [])
            return code
    return 0


def announce_each(ui: Ui, runs: Sequence[RunRecord], what: str, names: Sequence[str]) -> None:
    """Print the submitted jobs, a line each, and the next commands."""
    where = "on this machine" if runs[0].scheduler == LOCAL else f"on {runs[0].cluster}"
    jobs = [str(run.job_id) for run in runs]
    width, wide, first, last = max(map(len, jobs)), max(map(len, names)), jobs[0], jobs[-1]
    ui.say(f"Submitted {what} {where}; each starts after the previous one succeeds:")
    for name, run, job in zip(names, runs, jobs, strict=True):
        shape = f"{plural(run.world_size, 'rank')} on {plural(run.nodes, 'node')}"
        ui.say(f"  {name:<{wide}}  job {job:<{width}}  {shape}")
    ui.say(f"  next    clusterrun status {last}     clusterrun logs {first} -f     clusterrun cancel {' '.join(jobs)}")


def describe(run: RunRecord) -> dict[str, object]:
    """Return the JSON object of one submitted job."""
    return {"job_id": str(run.job_id), "run_id": run.run_id, "run_dir": str(run.run_dir), "nodes": run.nodes,
            "ranks": run.world_size}  # fmt: skip
