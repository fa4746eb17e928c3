"""Submit a recorded run: finish an interrupted submission with the same token, or resume a run that has ended.

A resumed run gets a new submission, whose ranks continue from its checkpoints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from clusterrun.base.decode import Damaged, build
from clusterrun.base.errors import Ambiguous, NoSuchJob, RequestError
from clusterrun.base.fields import CHANGEABLE, FIELD
from clusterrun.base.job import LOCAL, one_cluster
from clusterrun.config.rivals import argument_beside
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.render import Places, RunIdentity, render
from clusterrun.jobspec.spec import Check, JobSpec, Task, check_resume_args, with_directives
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import files, submissions
from clusterrun.scheduler import Scheduler, Submission
from clusterrun.submit import protocol
from clusterrun.submit.checks import check_secrets
from clusterrun.submit.job_python import WORKER
from clusterrun.submit.left_out import leave_out
from clusterrun.submit.plan import LocalContext, current_umask, load_planned, submission_of
from clusterrun.submit.request import memory_notices, time_notices
from clusterrun.submit.snapshot import save_again, saved_spec
from clusterrun.system import processes, shell

_NO_RESUME_ARGS = (
    "--resume-args is not set: unless the script finds its checkpoint, it starts from the beginning"
    " (`clusterrun resume JOBID --resume-args WORDS` sets it)"
)


def recover(
    run: RunRecord, store: Store, scheduler_of: Callable[[RunRecord], Scheduler], environ: Mapping[str, str],
    notify: Callable[[str], None],
) -> RunRecord:  # fmt: skip
    """Finish a run's submission: find its job, or submit it now. Return its record with the job id.

    ``store`` is that of the run's project. Raises NoSuchJob for another user's run, Ambiguous if it is being submitted
    or the scheduler does not respond, and the errors of ``scheduler_of`` and :func:`protocol.submit`.
    """
    refuse_to_recover(run)
    if run.submission.state == submissions.ACCEPTED:
        return run
    scheduler = scheduler_of(run)
    store.prepare_again(run)
    with store.submitting(run):
        run = run_record.load(run.run_dir) or run  # another command may have finished it meanwhile
        if run.submission.state == submissions.ACCEPTED:
            return run
        job = protocol.find_job(scheduler, [run], protocol.Clock(), notify)
        if job is not None:
            return store.commit(run, job, one_cluster(scheduler.cluster))
        run = protocol.begin(store, run)
        return protocol.submit(store, scheduler, run, rebuild_submission(run, environ), notify=notify)


def refuse_to_recover(run: RunRecord) -> None:
    """Raise NoSuchJob for another user's run, Ambiguous if it is being submitted."""
    if not run.mine:
        raise NoSuchJob(f"run {run.run_id} belongs to {run.user}, not to you", hint="only that user can submit it")
    if run.submission.state != submissions.ACCEPTED and processes.submitter_is_alive(run.submission.submitter):
        raise Ambiguous(
            f"run {run.run_id} is already being submitted by another command", hint="wait for that command to end"
        )


def rebuild_submission(run: RunRecord, environ: Mapping[str, str]) -> Submission:
    """Return the submission of a staged run, from its files: the same script, the same token.

    Raises RequestError if its spec.json is damaged, or if this shell lacks a variable of --secret.
    """
    data = files.read_json(run.run_dir / "spec.json") or {}
    try:
        # what runs is in the script, and may be a function
        spec = build(JobSpec, data, work=Check(), job_name=run.name, requeue=False)
        spec = with_directives(spec, _changed_before(run))
    except Damaged as error:
        raise RequestError(f"the spec.json of run {run.run_id} is invalid: {error}", hint="submit a new run") from None
    clean, _ = shell.scrub(environ)
    check_secrets(spec.secrets, clean)
    return submission_of(run, spec, Path(str(data.get("workdir") or run.root)), clean)


def resume(
    run: RunRecord, store: Store, scheduler: Scheduler, confirm: Callable[[RunRecord], None], here: LocalContext,
    check: Callable[[JobSpec, str], None], notify: Callable[[str], None], *, current_code: bool = False,
    resume_args: str | None = None, changed: Mapping[str, str] = MappingProxyType({}),
) -> RunRecord:  # fmt: skip
    """Submit a run that has ended once more, and return its record with the new job id.

    ``confirm`` raises if the run has not ended; ``check`` checks the job's Python and the script. With
    ``current_code`` the run gets the code as it is now, saved as at a first submission. ``resume_args`` take the place
    of the recorded ones for this job, ``changed`` that of options (``CHANGEABLE``) for all jobs that follow. Raises
    what they raise, RequestError for a run that cannot be rendered, Ambiguous while another command submits it, and the
    errors of :func:`protocol.submit`.
    """
    store.prepare_again(run)
    with store.submitting(run):
        run = run_record.load(run.run_dir) or run  # another command may have resumed it meanwhile
        confirm(run)
        spec, workdir = _spec_again(run)
        _check_changed(changed, run, spec)
        for line in (*time_notices(_typed(changed)), *memory_notices(changed.get("mem", ""))):
            notify(line)
        changed = {**_changed_before(run), **changed}
        spec = with_directives(spec, changed)
        if resume_args is not None:
            spec = replace(spec, resume_args=check_resume_args(spec.work, resume_args))
        own = {name: value for name, (value, _) in run.options.items()} | changed
        spec, left_out = leave_out(spec, own, scheduler.slurm, files.state_folder(here.environ))
        for line in left_out:
            notify(line)
        code = save_again(run, spec, workdir, here.environ, notify) if current_code else {}
        checked = spec if current_code else saved_spec(run, spec, notify)
        one = submissions.next_after(run.submission, processes.submitter(), spec.resume_args)
        run = replace(run, submissions=(*run.submissions, replace(one, changed=tuple(changed.items()))))
        places = Places(workdir, run.logs, WORKER, current_umask())
        text = render(spec, RunIdentity(run.run_id, run.run_dir, one.token), places, local=run.scheduler == LOCAL)
        check(checked, text)
        if why := _why_from_the_start(run, spec):
            notify(why)
        clean, _ = shell.scrub(here.environ)
        check_secrets(spec.secrets, clean)
        with _put_back_if_discarded(store, run, code):
            store.stage_again(run, text, code)
            submission = submission_of(run, spec, workdir, clean)
            return protocol.submit(store, scheduler, run, submission, notify=notify)


@contextlib.contextmanager
def _put_back_if_discarded(store: Store, run: RunRecord, names: Iterable[str]) -> Iterator[None]:
    """Put these files of a run back if its newest submission, for which they are replaced, becomes no job."""
    before = {name: _text(run.run_dir / name) for name in names}
    try:
        yield
    except BaseException:
        if not submissions.path_of(run.run_dir, run.submission.token).exists():
            store.write_files(run, before)
        raise


def _changed_before(run: RunRecord) -> dict[str, str]:
    """Return what the run's submission changed, without what a newer version may have recorded."""
    return {name: text for name, text in run.submission.changed if name in CHANGEABLE}


def _text(path: Path) -> str:
    """Return the content of a file that the store wrote, empty without one."""
    try:
        return path.read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""


def _typed(changed: Mapping[str, str]) -> dict[str, Value]:
    return {name: Value(text, f"--{name}") for name, text in changed.items()}


def _check_changed(changed: Mapping[str, str], run: RunRecord, spec: JobSpec) -> None:
    """Raise RequestError for an option that stays as it is in all jobs of a run, or that its place does not have."""
    hint = f"`clusterrun resubmit {run.job_id}` submits a new run"
    is_queued = run.scheduler != LOCAL and not spec.in_job
    for name in changed:
        if name not in CHANGEABLE:
            raise RequestError(f"--{name} cannot be changed in a run", hint=hint)
        if FIELD[name].slurm and not is_queued:
            raise RequestError(f"--{name} has no effect on this run: it is not in Slurm's queue", hint=hint)
        if argument := argument_beside(name, spec.sbatch_args):
            raise RequestError(f"--{name} conflicts with --sbatch-arg={argument} of the run", hint=hint)
    if changed.get("partition") == "auto":
        raise RequestError("--partition auto is only for new runs", hint="`clusterrun free` shows the partitions")


def _why_from_the_start(run: RunRecord, spec: JobSpec) -> str:
    """Return why the training may start from the first step, empty if nothing speaks for it."""
    if not isinstance(spec.work, Task):
        return "" if spec.resume_args else _NO_RESUME_ARGS
    if _has_checkpoint(run, spec.work):
        return ""
    return f"run {run.run_id} has no checkpoint, so its training starts from the first step"


def _has_checkpoint(run: RunRecord, task: Task) -> bool:
    """Return whether a run has checkpoints in its own folder; those in a folder of the user's are not looked for."""
    elsewhere = "checkpoint_dir" in dict(task.settings)
    return elsewhere or bool(run_record.list_names(run.run_dir / "checkpoints"))


def _spec_again(run: RunRecord) -> tuple[JobSpec, Path]:
    """Return the run's specification, and the folder it was submitted from."""
    spec, workdir = load_planned(run)
    if run_record.list_names(run.run_dir / "attempts"):  # it has started, so what it waited for is over
        spec = replace(spec, directives=tuple(pair for pair in spec.directives if pair[0] != "dependency"))
    return spec, workdir
