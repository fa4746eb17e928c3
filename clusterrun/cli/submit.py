"""``submit`` and ``render``: make the same plan from the same arguments."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from clusterrun.cli.after import after_options, find_after, plan_after
from clusterrun.cli.options import BARE, spec_options, submit_args
from clusterrun.cli.session import Session, json_option
from clusterrun.errors import ClusterrunError, RequestError
from clusterrun.job import LOCAL, log_paths
from clusterrun.records.run_record import RunRecord
from clusterrun.terminal.ui import Ui
from clusterrun.terminal.units import plural

if TYPE_CHECKING:
    from clusterrun.cluster import Cluster
    from clusterrun.state.reconcile import RunState
    from clusterrun.submit.plan import Plan
    from clusterrun.submit.request import SubmitArgs

MOMENT = 2.0
"""Seconds after a first Ctrl-C within which another one counts as the same."""


F = TypeVar("F", bound=Callable[..., Any])
_HOW = (
    ("--follow", "follow", "Follow the logs until the job ends; exit 0 if the job succeeded."),
    ("--wait", "wait", "Wait until the job ends; exit 0 if the job succeeded."),
    ("--dry-run", "dry_run", "Check the job and print a summary, without writing or submitting anything."),
    ("--script", "as_script", "With --dry-run, print the script instead of the summary."),
    ("--no-check", "no_check", "Skip the checks before submission: settings, limits and Slurm's start estimate."),
)


def how_options(command: F) -> F:
    """Add the options of ``submit`` and ``resubmit`` that do not describe the job."""
    for name, key, text in reversed(_HOW):
        command = click.option(name, key, is_flag=True, help=text)(command)
    return command


@click.command()
@click.argument("words", nargs=-1, metavar="[JOB] [-- SCRIPT [ARGS]...]")
@spec_options
@after_options
@how_options
@click.option(
    "--chain", is_flag=True, help="Submit several job files, each to start when the one before has succeeded."
)
@click.option(
    "--ladder",
    is_flag=True,
    help="Run the job with one process, then on one node, then on all nodes; report the speed-up.",
)
@click.option("--array", "array", metavar="INDEXES", help="Submit an array of runs, as sbatch does: 0-99%8.")
@click.option("--recover", metavar="RUN_ID", help="Finish or undo a submission that exited with code 75.")
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
    refuse_pairs(as_json, follow, as_script, dry_run)
    session: Session = ctx.obj
    cluster = session.cluster(ui.note)
    how = {"dry_run": dry_run, "as_script": as_script, "check": not no_check, "follow": follow, "wait": wait}
    if ladder + chain + bool(recover) + bool(array) > 1:
        raise RequestError("--ladder, --chain, --array and --recover cannot be combined", hint="use one of them")
    if recover:
        if dry_run or after or after_ok or words or session.script is not None:
            raise RequestError(
                "--recover cannot be combined with a job, --dry-run, --after or --after-ok",
                hint=f"clusterrun submit --recover {recover}",
            )
        run = cluster.recover(recover)
        announce(ui, run, data=not wait)
        ctx.exit(stay(ui, cluster, run, follow=follow, wait=wait))
    others = find_after(cluster, after, after_ok)
    if chain:
        from clusterrun.cli.chain import submit_chain

        jobs = chained_jobs(words, session.script)
        each = [submit_args(job, (), profile, dict(options)) for job in jobs]
        ctx.exit(submit_chain(ui, cluster, each, others, **how))
    args = submit_args(*job_and_script(words, session.script), profile, options)
    if array:
        from clusterrun.cli.sweep import submit_array

        ctx.exit(submit_array(ui, cluster, args, others, array, **how))
    if ladder:
        from clusterrun.cli.ladder import submit_ladder

        ctx.exit(submit_ladder(ui, cluster, args, others, **how))
    ctx.exit(submit_plan(ui, cluster, plan_after(cluster, args, others), **how))


def refuse_pairs(as_json: bool, follow: bool, as_script: bool, dry_run: bool) -> None:
    """Raise RequestError for options of ``submit`` and ``resubmit`` that cannot be combined."""
    if as_json and follow:
        raise RequestError(
            "--json and --follow cannot be combined", hint="use --wait, or `clusterrun logs JOBID` afterwards"
        )
    if as_script and not dry_run:
        raise RequestError("--script needs --dry-run", hint="clusterrun submit --dry-run --script …")


def submit_plan(
    ui: Ui, cluster: Cluster, plan: Plan, *, dry_run: bool, as_script: bool, check: bool, follow: bool, wait: bool
) -> int:
    """Submit a plan, or with ``dry_run`` print it; then follow or wait for the job. Return the exit code."""
    for notice in plan.notices:
        ui.note(notice)
    if dry_run:
        for line in cluster.check(plan) if check else ():
            ui.note(line)
        where = f"as {plan.record.name} on {plan.record.scheduler}"
        ui.note(f"would submit {plan.record.what} {where}; nothing was written")
        ui.data(show_plans(ui, [plan], as_script=as_script)[0])
        return 0
    with interrupt_deferred(ui, f"submit --recover {plan.record.run_id}") as interrupted:
        run = cluster.submit(plan, check=check)
        announce(ui, run, data=not wait)
    if interrupted:
        raise KeyboardInterrupt
    return stay(ui, cluster, run, follow=follow, wait=wait)


def stay(ui: Ui, cluster: Cluster, run: RunRecord, *, follow: bool, wait: bool) -> int:
    """Follow a job's logs or wait for its end, if the user wants that. Return the exit code."""
    if follow:
        from clusterrun.cli.follow import follow_run

        return follow_run(ui, cluster, run)
    if wait:
        from clusterrun.cli.follow import wait_to_end

        return wait_to_end(ui, cluster, [run], one=True)
    return 0


@click.command()
@click.argument("words", nargs=-1, metavar="[JOB] [-- SCRIPT [ARGS]...]")
@functools.partial(spec_options, bare="accelerate-config")
@click.option(
    "--per-node-commands", is_flag=True, help="Print the torchrun commands to run on each node, instead of the script."
)
@click.option("--explain", is_flag=True, help="Print the source of each value to standard error.")
@json_option
@click.pass_context
def render(
    ctx: click.Context, /, words: tuple[str, ...], profile: str | None, per_node_commands: bool, explain: bool,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Print the sbatch script that `submit` would use. Slurm is not required.

    \b
      clusterrun render --nodes 2 --gpus-per-node 4 | less
      clusterrun render sft --explain >/dev/null
      clusterrun render --nodes 2 --gpus-per-node 4 --per-node-commands -- train.py     (docs/without-slurm.md)
      clusterrun render --nodes 2 --gpus-per-node 4 --accelerate-config >multi_node.yaml

    --accelerate-config without FILE prints a YAML file for `accelerate launch --config_file` with the same numbers of
    nodes and ranks.
    """
    ui = Ui("render", as_json=as_json)
    session: Session = ctx.obj
    cluster = session.cluster(ui.note)
    job, script = job_and_script(words, session.script)
    print_yaml = options["accelerate_config"] == BARE
    if print_yaml:
        options["accelerate_config"] = None
    request = submit_args(job, script, profile, options)
    plan = cluster.plan(request, named=False)
    for notice in plan.notices:
        ui.note(notice)
    sources = plan.record.sources
    if explain and not as_json:
        for name, (value, source) in sources.items():
            ui.note(f"{name} = {value!r}  ({source})")
    text = plan.script
    if print_yaml and plan.spec.world_size > 1 and plan.spec.gpus_per_node == 0:
        ui.note(
            "on CPUs, `accelerate launch` starts only one process;"
            " use `clusterrun submit --launcher accelerate` to start all ranks"
        )
    if print_yaml or per_node_commands:
        from clusterrun.jobspec import by_hand
        from clusterrun.submit.plan import WORKER

        text = by_hand.accelerate_yaml(plan.spec) if print_yaml else ""
        text += by_hand.node_commands(plan.spec, plan.submission.workdir, WORKER) if per_node_commands else ""
    ui.data({"script": text, "sources": {k: {"value": v, "source": s} for k, (v, s) in sources.items()}})
    if not as_json:
        ui.raw(text)


def job_and_script(before: tuple[str, ...], after: Sequence[str] | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the job's name and the words after ``--``; raises RequestError if they cannot be combined."""
    if len(before) > 1:
        typed = " ".join(before)
        hint = f"put a script after --: clusterrun submit -- {typed}"
        if all(word.endswith(".toml") for word in before):
            hint = f"to run them in order: clusterrun submit {typed} --chain"
        raise RequestError(f"more than one job: {typed}", hint=hint)
    if after is not None and not after:
        raise RequestError("no script after --", hint="clusterrun submit -- train.py")
    if before and before[0].endswith(".py"):
        raise RequestError(f"{before[0]} is a script, not a job file", hint=f"clusterrun submit -- {before[0]}")
    return (before[0] if before else None), tuple(after or ())


def chained_jobs(before: tuple[str, ...], after: Sequence[str] | None) -> tuple[str, ...]:
    """Return the jobs of ``--chain``; raises RequestError if there are not several, or a script."""
    if after is not None:
        hint = "submit the script on its own, with --after-ok last"
        raise RequestError("--chain takes job files, not a script after --", hint=hint)
    if len(before) < 2:
        raise RequestError("--chain needs several job files", hint="clusterrun submit first.toml second.toml --chain")
    return before


def show_plans(ui: Ui, plans: Sequence[Plan], *, as_script: bool) -> list[dict[str, Any]]:
    """Print a summary of each plan in six lines, or its script; return their JSON objects."""
    from clusterrun.jobspec.render import describe
    from clusterrun.preflight.summary import gpu_hours, summary

    shown = [summary(plan.spec, describe(plan.spec), local=plan.record.scheduler == LOCAL) for plan in plans]
    for plan, lines in zip(plans, shown, strict=True):
        if as_script and not ui.as_json:
            ui.raw(plan.script)
        else:
            ui.say(*(f"{name:>9}  {text}" for name, text in lines.items()))
    return [
        {"run_id": None, "script": plan.script, "summary": lines, "gpu_hours": gpu_hours(plan.spec)}
        for plan, lines in zip(plans, shown, strict=True)
    ]


def announce(ui: Ui, run: RunRecord, *, data: bool) -> None:
    """Print a submitted job, its logs and the next commands; ``data`` also its JSON envelope."""
    job = run.job_id
    assert job is not None
    out, err = log_paths(run.logs, job)
    where = "on this machine" if run.scheduler == LOCAL else f"on {run.cluster}"
    ui.say(
        f"Submitted job {job} ({run.name}) {where}: {plural(run.world_size, 'rank')} on {plural(run.nodes, 'node')}",
        f"  logs    {out}",
        f"          {err}",
        f"  next    clusterrun logs {job} -f     clusterrun status {job}     clusterrun cancel {job}",
    )
    if not data:
        return  # --wait prints the envelope when the job has ended
    ui.data({
        "job_id": str(job), "run_id": run.run_id, "cluster": run.cluster, "scheduler": run.scheduler, "name": run.name,
        "run_dir": str(run.run_dir), "logs": [str(out), str(err)],
    })  # fmt: skip


def run_to_end(ui: Ui, cluster: Cluster, args: SubmitArgs, what: str) -> RunState:
    """Submit one of clusterrun's own short jobs, and wait for its end; Ctrl-C cancels it. ``what`` is its verb."""
    plan = cluster.plan(args)
    for notice in plan.notices:
        ui.note(notice)
    with interrupt_deferred(ui, f"submit --recover {plan.record.run_id}") as interrupted:
        run = cluster.submit(plan)
    try:
        if interrupted:
            raise KeyboardInterrupt
        shape = f"{plural(run.nodes, 'node')} with {plural(run.world_size, 'rank')}"
        ui.note(f"job {run.job_id} {what} {shape}; Ctrl-C cancels it")
        (state,) = cluster.wait([run])
    except BaseException:
        cancel_runs(ui, cluster, [run])
        raise
    return state


def cancel_runs(ui: Ui, cluster: Cluster, runs: Sequence[RunRecord]) -> None:
    """Cancel runs that nobody needs any more; name those that may still be in the queue."""
    if not runs:
        return
    names = " ".join(str(run.job_id) for run in runs)
    try:
        alive = [state for state in cluster.states(runs) if not state.status.is_over]
        done = all(result.done for _, result in cluster.cancel(alive))
    except (ClusterrunError, KeyboardInterrupt):
        done = False
    jobs = f"job{'s' * (len(runs) > 1)} {names}"
    ui.note(f"cancelled {jobs}" if done else f"cannot cancel {jobs}; try `clusterrun cancel {names}`")


@contextmanager
def interrupt_deferred(ui: Ui, finish: str) -> Iterator[list[float]]:
    """Defer Ctrl-C while a submission is in progress; yield the times of each.

    A Ctrl-C more than ``MOMENT`` after the first one abandons the submission, which the command ``finish`` finishes.
    """
    pressed: list[float] = []

    def press(number: int, frame: object) -> None:
        pressed.append(time.monotonic())
        if pressed[-1] - pressed[0] > MOMENT:
            raise KeyboardInterrupt
        if len(pressed) == 1:
            ui.note("finishing the submission; press Ctrl-C again to abandon it")

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    except KeyboardInterrupt:
        ui.note(f"interrupted; run `clusterrun {finish}` to finish or undo this submission")
        raise
    finally:
        signal.signal(signal.SIGINT, before)
