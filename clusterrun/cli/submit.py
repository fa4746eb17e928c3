"""``submit``: submit a job, several in a chain or a ladder, or an array."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from clusterrun.base.errors import RequestError
from clusterrun.base.job import LOCAL
from clusterrun.base.units import plural
from clusterrun.cli.common import complete, submitting
from clusterrun.cli.common.agent import check_typed
from clusterrun.cli.common.meanings import misplaced
from clusterrun.cli.common.options import Grouped, job_and_script, spec_options, submit_args
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.common.submitting import Awaited, How, conditions, find_after, plan_after, submit_plan
from clusterrun.cluster import Cluster
from clusterrun.records.run_record import RunRecord
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.jobspec.spec import JobSpec
    from clusterrun.submit.plan import Plan
    from clusterrun.submit.request import Request, SubmitArgs


MakePlan = Callable[[RunRecord | None], "Plan"]
"""Makes the plan of a job that starts after another one; of the first job without one."""


@click.command(cls=Grouped)
@click.argument("words", nargs=-1, metavar="[JOB] [-- SCRIPT [ARGS]...]", shell_complete=complete.job_files)
@spec_options
@submitting.after_options
@submitting.how_options
@click.option("--chain", is_flag=True, help="Submit several job files, each starting after the previous one succeeds.")
@click.option(
    "--ladder",
    is_flag=True,
    help="Run the job with one process, then on one node, then on all nodes; report the speed-up.",
)
@click.option(
    "--array", "array", metavar="INDEXES", help="Submit an array of runs, with indexes as for sbatch --array (0-99%8)."
)
@click.option("--recover", metavar="RUN_ID", help="Finish a submission that was interrupted or exited with code 75.")
@json_option
@click.pass_context
def submit(
    ctx: click.Context, /, words: tuple[str, ...], profile: str | None, after: tuple[str, ...],
    after_ok: tuple[str, ...], follow: bool, wait: bool, dry_run: bool, as_script: bool, no_check: bool, chain: bool,
    ladder: bool, array: str | None, recover: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Submit a job file, your own script, or the default job.

    \b
      clusterrun submit --nodes 2 --gpus-per-node 4                    the default job
      clusterrun submit sft --time 2:00:00                             jobs/sft.toml
      clusterrun submit finetune -- --lr 1e-3                          jobs/finetune.toml, with more arguments
      clusterrun submit --nodes 2 --gpus-per-node 4 -- train.py --lr 1e-4
      clusterrun submit --nodes 2 -- -m package.train --epochs 3
      clusterrun submit --gpus-per-node 0 --tasks-per-node 8 -- train.py     ranks without GPUs
      clusterrun submit sft --nodes 2 --gpus-per-node 4 --ladder             1, 4 and 8 ranks (docs/ladder.md)
      clusterrun submit pretrain.toml sft.toml --chain                       sft starts when pretrain has succeeded
      clusterrun submit --after-ok last -- evaluate.py

    SCRIPT is a Python file, -m MODULE, or any executable. It runs once per GPU, with torch's environment variables
    set. A command line of torchrun, accelerate, srun or another launcher is translated (docs/from-other-launchers.md).
    Unset options use the cluster's defaults.
    """
    ui = Ui("submit", as_json=as_json)
    how = How(dry_run=dry_run, as_script=as_script, check=not no_check, follow=follow, wait=wait)
    submitting.refuse_pairs(how, as_json=as_json)
    session: Session = ctx.obj
    if session.for_agent:
        check_typed(ctx, words)
    cluster = session.planner(ui.note, submits=not dry_run)
    if ladder + chain + bool(recover) + bool(array) > 1:
        raise RequestError("--ladder, --chain, --array and --recover cannot be combined", hint="use one of them")
    if recover:
        ctx.exit(_recover(ui, cluster, recover, how, [*words, *after, *after_ok], session.script))
    others = find_after(cluster, after, after_ok)
    if chain:
        jobs = [submit_args(job, (), profile, dict(options)) for job in chained_jobs(words, session.script)]
        ctx.exit(submit_chain(ui, cluster, jobs, others, how))
    args = submit_args(*job_and_script(words, session.script), profile, options)
    if line := misplaced(session.script or ()):
        ui.note(line)
    if array:
        from clusterrun.cli.sweep import submit_array

        ctx.exit(submit_array(ui, cluster, args, others, array, how))
    if ladder:
        ctx.exit(submit_ladder(ui, cluster, args, others, how))
    plan = plan_after(cluster, args, others, joins=True)
    _refuse_unfilled(cluster, args, plan)
    ctx.exit(submit_plan(ui, cluster, plan, how))


def _refuse_unfilled(cluster: Cluster, args: SubmitArgs, plan: Plan) -> None:
    """Raise RequestError for a job file whose arguments have a parameter of its sweep: `submit` fills in none."""
    words = " ".join(getattr(plan.spec.work, "args", ()))
    if not args.job or "{" not in words:
        return
    sweep = cluster.request(args).sweep
    for name in (*sweep.grid, *sweep.together):
        if f"{{{name}}}" in words:
            message = f"the arguments of {args.job} have {{{name}}}, a parameter of its sweep"
            raise RequestError(message, hint=f"clusterrun sweep {shlex.quote(args.job)}")


def _recover(
    ui: Ui, cluster: Cluster, run_id: str, how: How, words: Sequence[str], script: Sequence[str] | None
) -> int:
    """Finish a submission; raises RequestError if a job was typed too: the other ``words`` or the ``script``."""
    if how.dry_run or words or script is not None:
        message = "--recover cannot be combined with a job, --dry-run, --after or --after-ok"
        raise RequestError(message, hint=f"clusterrun submit --recover {run_id}")
    run = cluster.recover(run_id)
    submitting.announce(ui, run, data=not how.wait)
    return submitting.stay(ui, cluster, run, how)


def chained_jobs(before: tuple[str, ...], after: Sequence[str] | None) -> tuple[str, ...]:
    """Return the jobs of ``--chain``; raises RequestError if there are not several, or a script."""
    if after is not None:
        hint = "submit the script separately: clusterrun submit --after-ok last -- SCRIPT"
        raise RequestError("--chain takes job files, not a script after --", hint=hint)
    if len(before) < 2:
        hint = "clusterrun submit first.toml second.toml --chain"
        raise RequestError("--chain needs at least two job files", hint=hint)
    return before


def submit_chain(
    ui: Ui, cluster: Cluster, jobs: Sequence[SubmitArgs], after: Sequence[Awaited], how: How
) -> int:  # fmt: skip
    """Submit jobs, each to start when the one before has succeeded, the first ``after`` others. Return the exit code.

    All are checked before the first is submitted.
    """
    from clusterrun.submit.request import AFTER_OK, depend

    def plan(args: SubmitArgs, before: RunRecord | None) -> Plan:
        if before is None:
            return plan_after(cluster, args, after if args is jobs[0] else ())
        assert before.job_id is not None
        condition = f"{AFTER_OK}:{before.job_id.base}"
        return cluster.plan(args, change=lambda request: depend(request, [condition]))

    plans = [plan(args, None) for args in jobs]
    _refuse_several_places(plans)
    for each in plans:
        submitting.note_all(ui, each.notices)
        submitting.note_checks(ui, cluster, each, how)
    if how.dry_run:
        ui.note(f"would submit {len(plans)} jobs, each starting after the previous one succeeds; nothing was written")
        ui.data(submitting.show_plans(ui, plans, as_script=how.as_script))
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


def submit_ladder(ui: Ui, cluster: Cluster, args: SubmitArgs, after: Sequence[Awaited], how: How) -> int:
    """Submit each rung after the one before, the first ``after`` other jobs. Return the exit code.

    The last and largest rung is checked before the first is submitted. At the end print the report.
    """
    from clusterrun.jobspec.spec import Task
    from clusterrun.submit.ladder import find_rungs

    whole = plan_after(cluster, args, after)
    rungs = enumerate(find_rungs(whole.spec), 1)
    makers = [partial(_plan_rung, cluster, args, whole.spec, after, number, shape) for number, shape in rungs]
    submitting.note_all(ui, whole.notices)
    if not isinstance(whole.spec.work, Task):
        ui.note(f"each rung runs {whole.record.what} in full; use a small number of steps")
    if how.check:
        submitting.note_checks(ui, cluster, makers[-1](None), how)
    if how.dry_run:
        ui.note(f"would submit {plural(len(makers), 'rung')} of {whole.record.name}; nothing was written")
        ui.data(submitting.show_plans(ui, [make_plan(None) for make_plan in makers], as_script=how.as_script))
        return 0
    what = f"a ladder of {len(makers)} rungs ({whole.record.name})"
    names = [f"rung {number}" for number in range(1, len(makers) + 1)]
    return _run_in_order(ui, cluster, makers, what, names, how, report=_print_report)


def _plan_rung(
    cluster: Cluster, args: SubmitArgs, spec: JobSpec, after: Sequence[Awaited], number: int, shape: tuple[int, int],
    before: RunRecord | None,
) -> Plan:  # fmt: skip
    """Plan a rung of the job with the specification ``spec``; the first rung starts ``after`` other jobs."""
    from clusterrun.submit.ladder import rung_request
    from clusterrun.submit.request import depend

    def change(request: Request) -> Request:
        if before is None:
            return rung_request(depend(request, conditions(after)), spec, number, shape, None)
        return rung_request(request, spec, number, shape, before.job_id)

    plan = cluster.plan(args, change=change)
    return plan._replace(record=replace(plan.record, rung_before=before.run_id if before else ""))


def _print_report(ui: Ui, cluster: Cluster, runs: Sequence[RunRecord]) -> None:
    from clusterrun.cli.common.show import first_cause
    from clusterrun.state.ladder import Ladder

    report = Ladder(cluster.states(runs), first_cause)
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
            with submitting.interrupt_deferred(ui, f"submit --recover {plan.record.run_id}"):
                runs.append(cluster.submit(plan, check=False))
    except BaseException:
        submitting.cancel_runs(ui, cluster, runs)
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
            submitting.cancel_runs(ui, cluster, runs[number:])
        if code:
            return code
    return 0


def _announce(ui: Ui, runs: Sequence[RunRecord], what: str, names: Sequence[str]) -> None:
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
