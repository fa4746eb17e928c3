"""``resubmit``: submit a job again as a new run, with changes. ``resume``: continue a run that ended early."""

from __future__ import annotations

import functools
import shlex
from typing import TYPE_CHECKING, Any

import click

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import CHANGEABLE, FIELD
from clusterrun.base.job import Outcome
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import find_target, find_targets, require_run
from clusterrun.cli.common.options import Grouped, spec_options, submit_args
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.common.submitting import (
    How,
    after_options,
    announce,
    find_after,
    how_options,
    interrupt_deferred,
    plan_after,
    refuse_pairs,
    submit_plan,
)
from clusterrun.records.code_store import code_line
from clusterrun.records.run_record import list_names
from clusterrun.submit.request import SubmitArgs
from clusterrun.submit.resubmit import resubmit_args
from clusterrun.submit.snapshot import has_changed
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.cluster import Cluster
    from clusterrun.records.run_record import RunRecord

_ENDED_EARLY = (Outcome.FAILED, Outcome.STOPPED, Outcome.CANCELLED, Outcome.LOST)


@click.command(cls=Grouped)
@click.argument("job_id", metavar="JOBID [-- ARGS]...", shell_complete=complete.jobs)
@functools.partial(spec_options, with_profile=False)
@after_options
@how_options
@click.option(
    "--failed", is_flag=True, help="Submit again the tasks of a sweep that failed, were cancelled or never started."
)
@json_option
@click.pass_context
def resubmit(
    ctx: click.Context, /, job_id: str, after: tuple[str, ...], after_ok: tuple[str, ...], follow: bool, wait: bool,
    dry_run: bool, as_script: bool, no_check: bool, failed: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Submit a job again as a new run: the same work, options and folder, with the changes that you give.

    \b
      clusterrun resubmit 123
      clusterrun resubmit last --set lr=1e-4 --nodes 4
      clusterrun resubmit 123 -- --lr 1e-4           replaces the script's arguments
      clusterrun resubmit SWEEP --failed --time 4:00:00

    Options keep the values of JOBID (a job id, a run id, a name or last) unless they are given; profiles and job files
    are not read again. A list such as --setup is replaced; --secret, --env and --set are added to the old values;
    --dependency is dropped. `resume` continues the same run instead.
    """
    ui = Ui("resubmit", as_json=as_json)
    how = How(dry_run=dry_run, as_script=as_script, check=not no_check, follow=follow, wait=wait)
    refuse_pairs(how, as_json=as_json)
    session: Session = ctx.obj
    changes = submit_args(None, (), None, options)
    if failed:
        if follow or as_script or after or after_ok or session.script is not None:
            raise RequestError("--failed cannot be combined with arguments, --follow, --script, --after or --after-ok",
                               hint="clusterrun resubmit SWEEP --failed")  # fmt: skip
        from clusterrun.cli.sweep import resubmit_failed

        ctx.exit(resubmit_failed(ui, session, job_id, changes, how))
    cluster = session.cluster(ui.note)
    run = _find_run(cluster, job_id)
    args, folder = resubmit_args(run, changes, session.script, cluster.cwd, cluster.environ, ui.note)
    _note_what_is_shared(ui, cluster, run, args, changes)
    if folder != cluster.cwd:
        ui.note(f"submitting from {folder}")
    there = session.planner(ui.note, submits=not dry_run, cwd=folder)
    ctx.exit(submit_plan(ui, there, plan_after(there, args, find_after(cluster, after, after_ok)), how))


def _find_run(cluster: Cluster, word: str) -> RunRecord:
    """Return the run that a word names. Raises NoSuchJob, and RequestError for a whole sweep."""
    target, *others = find_targets(cluster, [word], several=True)
    if others:
        raise RequestError(
            f"{word} is a sweep of {1 + len(others)} tasks: to submit all of them, run its `clusterrun sweep` command"
            " again",
            hint=f"`clusterrun resubmit {shlex.quote(word)} --failed` for those that failed,"
            f" `clusterrun resubmit {target.job_id or target.text}` for one",
        )
    return require_run(cluster, target, "submit its script again with sbatch")


def _note_what_is_shared(ui: Ui, cluster: Cluster, run: RunRecord, args: SubmitArgs, changes: SubmitArgs) -> None:
    """Print that the new run has other code than the old one, the same checkpoints, or none of them, if so."""
    is_changed = args.work is not None and has_changed(run, args.work, cluster.environ)
    if is_changed:
        ui.note(f"the new run uses the current code, not the code of job {run.job_id} ({code_line(run)})")
    folder = _setting(args, "checkpoint_dir")
    if folder and not _setting(changes, "checkpoint_dir"):
        ui.note(
            f"checkpoint_dir={folder} belongs to job {run.job_id}, so training resumes from the newest checkpoint"
            " there; add --set checkpoint_dir=FOLDER to train from the start"
        )
    elif _can_continue(cluster, run):
        command = f"clusterrun resume {run.job_id}" + " --current-code" * is_changed
        ui.note(f"the new run starts from the beginning; to continue job {run.job_id}, use `{command}`")


def _can_continue(cluster: Cluster, run: RunRecord) -> bool:
    """Return whether a run has ended early, and has checkpoints or arguments to continue with."""
    if "resume-args" not in run.sources and not list_names(run.run_dir / "checkpoints"):
        return False
    return cluster.states([run])[0].status.outcome in _ENDED_EARLY


def _setting(args: SubmitArgs, name: str) -> Any:
    return args.flags["set"].value.get(name) if "set" in args.flags else None


@click.command(cls=Grouped)
@click.argument("job_id", metavar="JOBID", shell_complete=complete.jobs)
@functools.partial(spec_options, names={*CHANGEABLE} - {"partition"}, with_profile=False)
@click.option(
    "-p", "--partition", metavar="NAME", shell_complete=complete.of_field(FIELD["partition"]), help="Partition.",
)  # fmt: skip
@click.option(
    "--current-code",
    is_flag=True,
    help="Save your current code and run that, instead of the code that was saved for the run.",
)
@click.option(
    "--resume-args",
    metavar="WORDS",
    help="Add these to the script's arguments, instead of the run's own --resume-args.",
)
@click.option(
    "--secret", "secrets", multiple=True, metavar="NAME",
    help="With --remote, send the secret NAME from this shell's environment; repeatable.",
)  # fmt: skip
@json_option
@click.pass_context
def resume(
    ctx: click.Context,
    /,
    job_id: str,
    current_code: bool,
    resume_args: str | None,
    secrets: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Continue a stopped, cancelled or failed run from its checkpoints.

    \b
      clusterrun resume 123
      clusterrun resume 123 --current-code           after you have fixed a bug in your script
      clusterrun resume 123 --resume-args '--resume out/step_60.pt'
      clusterrun resume 123 --time 8:00:00           after the time limit ended it

    A new job continues the run in the same folder with the same options, and with the changes that you give, which
    the run keeps. A built-in task loads its newest checkpoint; your own script is started with the arguments of
    --resume-args. JOBID may also be a run id, a job name or last.
    """
    ui = Ui("resume", as_json=as_json)
    changed = {name: value.value for name, value in submit_args(None, (), None, options).flags.items()}
    cluster = ctx.obj.cluster(ui.note)
    target = find_target(cluster, job_id)
    run = target.run
    if secrets and run is not None and run.mine:
        from clusterrun.submit.checks import check_recorded_secrets

        check_recorded_secrets(secrets, run)
    with interrupt_deferred(ui, f"resume {target.text}"):
        again = cluster.resume(target, current_code=current_code, resume_args=resume_args, changed=changed)
        announce(ui, again, data=True)
