"""``resubmit``: submit a job again as a new run, with changes."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from clusterrun.base.errors import NoSuchJob, RequestError
from clusterrun.cli.common.after import after_options, find_after, plan_after
from clusterrun.cli.common.names import find_ids
from clusterrun.cli.common.options import spec_options, submit_args
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.common.submitting import How, how_options, refuse_pairs, submit_plan
from clusterrun.records.code_store import code_line
from clusterrun.submit.request import SubmitArgs
from clusterrun.submit.resubmit import resubmit_args
from clusterrun.submit.snapshot import has_changed
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.cluster import Cluster
    from clusterrun.records.run_record import RunRecord


@click.command()
@click.argument("job_id", metavar="JOBID [-- ARGS]...")
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
    named = find_ids(cluster, [word], several=True)
    if len(named) > 1:
        raise _whole_sweep(word, named, cluster)
    (job_id,) = named
    run = cluster.run(job_id)
    if run is None:
        cluster.status([job_id])  # raises NoSuchJob for a job that nobody knows
        raise NoSuchJob(f"job {job_id} was not submitted by clusterrun", hint="submit its script again with sbatch")
    return run


def _note_what_is_shared(ui: Ui, cluster: Cluster, run: RunRecord, args: SubmitArgs, changes: SubmitArgs) -> None:
    """Print that the new run has other code than the old one, or the same checkpoints, if so."""
    if args.work is not None and has_changed(run, args.work, cluster.environ):
        ui.note(f"the new run uses the current code, not the code of job {run.job_id} ({code_line(run)})")
    folder = _setting(args, "checkpoint_dir")
    if folder and not _setting(changes, "checkpoint_dir"):
        ui.note(
            f"checkpoint_dir={folder} belongs to job {run.job_id}, so training resumes from the newest checkpoint"
            " there; add --set checkpoint_dir=FOLDER to train from the start"
        )


def _whole_sweep(word: str, tasks: Sequence[str], cluster: Cluster) -> RequestError:
    first = cluster.run(tasks[0])
    job_id = first.job_id if first is not None else None
    return RequestError(
        f"{word} is a sweep of {len(tasks)} tasks: to submit all of them, run its `clusterrun sweep` command again",
        hint=f"`clusterrun resubmit {shlex.quote(word)} --failed` for those that failed,"
        f" `clusterrun resubmit {job_id or tasks[0]}` for one",
    )


def _setting(args: SubmitArgs, name: str) -> Any:
    return args.flags["set"].value.get(name) if "set" in args.flags else None
