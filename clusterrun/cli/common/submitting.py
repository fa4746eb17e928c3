"""What the commands that submit share: their options, the submission of a plan, its announcement and its summary.

``--after`` and ``--after-ok`` start a job after other jobs, by their ids or names.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from clusterrun.base.errors import Ambiguous, ClusterrunError, NoSuchJob, RequestError
from clusterrun.base.job import LOCAL, Outcome, log_paths
from clusterrun.base.units import plural
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import find_targets
from clusterrun.records.run_record import RunRecord
from clusterrun.terminal.ui import Ui

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
    ("--script", "as_script", "With --dry-run, print the sbatch script instead of the summary."),
    ("--no-check", "no_check", "Skip the checks before submission: settings, limits and Slurm's start estimate."),
)


def how_options(command: F) -> F:
    """Add the options of ``submit`` and ``resubmit`` that do not describe the job."""
    for name, key, text in reversed(_HOW):
        command = click.option(name, key, is_flag=True, help=text)(command)
    return command


class How(NamedTuple):
    """What to do with a plan: the options of ``submit``, ``resubmit`` and ``sweep`` that do not describe the job."""

    dry_run: bool = False
    as_script: bool = False
    check: bool = True
    follow: bool = False
    wait: bool = False


def refuse_pairs(how: How, *, as_json: bool) -> None:
    """Raise RequestError for options of ``submit`` and ``resubmit`` that cannot be combined."""
    if as_json and how.follow:
        raise RequestError(
            "--json and --follow cannot be combined", hint="use --wait, or `clusterrun logs JOBID` afterwards"
        )
    if how.as_script and not how.dry_run:
        raise RequestError("--script needs --dry-run", hint="clusterrun submit --dry-run --script …")


def submit_plan(ui: Ui, cluster: Cluster, plan: Plan, how: How) -> int:
    """Submit a plan, or print it, then follow or wait for the job, as the options say. Return the exit code."""
    note_all(ui, plan.notices)
    if how.dry_run:
        note_checks(ui, cluster, plan, how)
        where = where_runs(plan.record, "to Slurm")
        ui.note(f"would submit {plan.record.what} {where} as job {plan.record.name}; nothing was written")
        ui.data(show_plans(ui, [plan], as_script=how.as_script)[0])
        return 0
    with interrupt_deferred(ui, f"submit --recover {plan.record.run_id}"):
        run = cluster.submit(plan, check=how.check)
        announce(ui, run, data=not how.wait)
    return stay(ui, cluster, run, how)


def note_checks(ui: Ui, cluster: Cluster, plan: Plan, how: How) -> None:
    """Check a plan, unless the user skips that, and print what is noteworthy. Raises what the checks raise."""
    if how.check:
        note_all(ui, cluster.check(plan))


def note_all(ui: Ui, lines: Iterable[str]) -> None:
    """Print notices."""
    for line in lines:
        ui.note(line)


def stay(ui: Ui, cluster: Cluster, run: RunRecord, how: How) -> int:
    """Follow a job's logs or wait for its end, if the user wants that. Return the exit code."""
    if how.follow:
        from clusterrun.cli.follow import follow_run

        return follow_run(ui, cluster, run)
    if how.wait:
        from clusterrun.cli.follow import report_end_of
        from clusterrun.state.show import state_json

        with ui.working(f"waiting for job {run.job_id}"):
            states = cluster.wait([run])
        ui.data(state_json(states[0]))
        return report_end_of(ui, cluster, states)
    return 0


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


def where_runs(run: RunRecord, queued: str) -> str:
    """Return where a run runs, in words: ``queued`` for a job of its own on a cluster."""
    if run.in_job:
        return f"inside job {run.in_job}"
    return "on this machine" if run.scheduler == LOCAL else queued


def announce(ui: Ui, run: RunRecord, *, data: bool) -> None:
    """Print a submitted job, its logs and the next commands; ``data`` also its JSON envelope."""
    job = run.job_id
    assert job is not None
    out, err = log_paths(run.logs, job)
    where = where_runs(run, f"on {run.cluster}")
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
    note_all(ui, plan.notices)
    runs: list[RunRecord] = []
    try:
        with interrupt_deferred(ui, f"submit --recover {plan.record.run_id}"):
            runs.append(cluster.submit(plan))
        (run,) = runs
        shape = f"{plural(run.nodes, 'node')} with {plural(run.world_size, 'rank')}"
        ui.note(f"job {run.job_id} {what} {shape}; Ctrl-C cancels it")
        with ui.working(f"job {run.job_id} {what}"):
            (state,) = cluster.wait(runs)
    except BaseException:
        cancel_runs(ui, cluster, runs)
        raise
    return state


def cancel_runs(ui: Ui, cluster: Cluster, runs: Sequence[RunRecord]) -> None:
    """Cancel runs that nobody needs any more; name those that may still be in the queue."""
    if not runs:
        return
    names = " ".join(str(run.job_id) for run in runs)
    jobs = f"job{'s' * (len(runs) > 1)} {names}"
    try:
        alive = [state for state in cluster.states(runs) if not state.status.is_over]
        are_cancelled = all(result.done for _, result in cluster.cancel(alive))
    except (ClusterrunError, KeyboardInterrupt):
        are_cancelled = False
    if are_cancelled:
        ui.note(f"cancelled {jobs}")
    else:
        ui.note(f"could not cancel {jobs}; try again: clusterrun cancel {names}")


@contextmanager
def interrupt_deferred(ui: Ui, finish: str) -> Iterator[None]:
    """Defer Ctrl-C while a submission is in progress: it raises KeyboardInterrupt at the end.

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
        with ui.working("checking the job, saving the code, submitting"):
            yield
    except KeyboardInterrupt:
        ui.note(f"interrupted; run `clusterrun {finish}` to finish or undo this submission")
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


_AFTER = (
    ("--after", "Start after this job (id, name or last) has ended, whatever its result; repeatable."),
    ("--after-ok", "Start after this job has succeeded; if it fails, the new job is cancelled; repeatable."),
)


Awaited = tuple[str, str, str]
"""A job that a new job waits for: sbatch's condition (``afterok:12``), the job's scheduler, its cluster if known."""


def after_options(command: F) -> F:
    """Add ``--after`` and ``--after-ok``."""
    for name, text in reversed(_AFTER):
        option = click.option(name, metavar="JOBID", multiple=True, help=text, shell_complete=complete.jobs)
        command = option(command)
    return command


def find_after(cluster: Cluster, ended: Sequence[str], succeeded: Sequence[str]) -> list[Awaited]:
    """Return the jobs of ``--after`` and ``--after-ok``; a job that has met its condition is left out.

    Raises NoSuchJob, and RequestError for a job that can no longer succeed.
    """
    awaited: list[Awaited] = []
    for kind, words in (("afterany", ended), ("afterok", succeeded)):
        for target in find_targets(cluster, words):
            run = target.run
            if run is not None and run.job_id is None:
                raise NoSuchJob(f"run {target.text} has no job yet", hint=f"clusterrun submit --recover {target.text}")
            states = cluster.status([target])
            base, _, elsewhere = target.text.partition(";")
            job = str(run.job_id) if run is not None else base
            if _is_met(states, job, is_run=run is not None, must_succeed=kind == "afterok"):
                cluster.notify(f"job {job} has already ended; not waiting for it")
                continue
            scheduler, where = ("slurm", elsewhere) if run is None else (run.scheduler, run.cluster)
            awaited.append((f"{kind}:{job}", scheduler, where))
    return awaited


def conditions(after: Sequence[Awaited]) -> list[str]:
    """Return sbatch's conditions for jobs that a new job waits for."""
    return [condition for condition, _, _ in after]


def plan_after(cluster: Cluster, args: SubmitArgs, after: Sequence[Awaited], *, joins: bool = False) -> Plan:
    """Plan a job that waits for others; raises RequestError if they run elsewhere. ``joins``: see Cluster.plan."""
    if not after:
        return cluster.plan(args, joins=joins)
    from clusterrun.submit.request import depend

    plan = cluster.plan(args, change=lambda request: depend(request, conditions(after)), joins=joins)
    here = (plan.record.scheduler, plan.record.cluster)
    for condition, scheduler, where in after:
        if scheduler != here[0] or where not in ("", here[1]):
            job = condition.partition(":")[2]
            raise RequestError(
                f"a job on {_place(*here)} cannot wait for job {job} on {_place(scheduler, where)}",
                hint=f"wait for it first: clusterrun wait {job}",
            )
    return plan


def _place(scheduler: str, cluster: str) -> str:
    return "this machine" if scheduler == LOCAL else f"cluster {cluster}" if cluster else "a cluster"


def _is_met(states: Sequence[RunState], job: str, *, is_run: bool, must_succeed: bool) -> bool:
    """Return whether a job, or all tasks of an array, have ended as wanted; raises RequestError if that is over."""
    for state in states if must_succeed else ():
        _refuse_failed(state, job, is_run=is_run)
    return bool(states) and all(state.status.is_final for state in states)


def _refuse_failed(state: RunState, job: str, *, is_run: bool) -> None:
    """Raise if a job cannot succeed any more, or may have failed.

    Slurm takes a condition as met if it has forgotten the job.
    """
    status = state.status
    if status.outcome is Outcome.UNKNOWN:
        raise Ambiguous(
            f"it is not known how job {status.id} ended, so a job with --after-ok {job} might start after a failure",
            detail=state.note or status.reason, hint="check its results, then submit without a condition",
        )  # fmt: skip
    if status.is_final and status.outcome is not Outcome.DONE:
        again = "resume" if status.outcome is Outcome.STOPPED else "resubmit"
        raise RequestError(
            f"job {status.id} is {status.state}, so a job with --after-ok {job} would never start",
            hint=f"use --after, or run `clusterrun {again} {job}` first" if is_run else "use --after",
        )
