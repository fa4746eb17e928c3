"""Resume a run: a new submission of the same run, whose ranks continue from its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from clusterrun.base.errors import RequestError
from clusterrun.base.job import LOCAL
from clusterrun.jobspec.render import Places, RunIdentity, render
from clusterrun.jobspec.spec import JobSpec, Task, load_spec
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import files, submissions
from clusterrun.scheduler import Scheduler
from clusterrun.submit import protocol
from clusterrun.submit.job_python import WORKER
from clusterrun.submit.plan import LocalContext, current_umask
from clusterrun.submit.recover import rebuild_submission
from clusterrun.submit.snapshot import saved_spec
from clusterrun.system import processes


def resume(
    run: RunRecord, store: Store, scheduler: Scheduler, confirm: Callable[[RunRecord], None], here: LocalContext,
    check: Callable[[JobSpec, str], None], notify: Callable[[str], None],
) -> RunRecord:  # fmt: skip
    """Submit a run that has ended once more, and return its record with the new job id.

    ``confirm`` raises if the run has not ended; ``check`` checks the job's Python and the script. Raises what they
    raise, RequestError for a run that cannot be rendered, Ambiguous while another command submits it, and the errors
    of :func:`protocol.submit`.
    """
    logs = store.prepare(run.shared)
    with store.submitting(run):
        run = run_record.load(run.run_dir) or run  # another command may have resumed it meanwhile
        confirm(run)
        spec, workdir = _spec_again(run)
        saved = saved_spec(run, spec, notify)
        one = submissions.next_after(run.submission, processes.submitter())
        run = replace(run, submissions=(*run.submissions, one))
        places = Places(workdir, logs, WORKER, current_umask())
        text = render(spec, RunIdentity(run.run_id, run.run_dir, one.token), places, local=run.scheduler == LOCAL)
        check(saved, text)
        if not isinstance(spec.work, Task) and not spec.resume_args:
            notify("--resume-args is not set: unless the script finds its checkpoint, it starts from the beginning")
        if isinstance(spec.work, Task) and not _has_checkpoint(run, spec.work):
            notify(f"run {run.run_id} has no checkpoint, so its training starts from the first step")
        store.stage_again(run, text)
        submission = rebuild_submission(run, logs, here.environ)._replace(dependency=spec.directive("dependency"))
        return protocol.submit(store, scheduler, run, submission, notify=notify)


def _has_checkpoint(run: RunRecord, task: Task) -> bool:
    """Return whether a run has checkpoints in its own folder; those in a folder of the user's are not looked for."""
    elsewhere = "checkpoint_dir" in dict(task.settings)
    return elsewhere or bool(run_record.list_names(run.run_dir / "checkpoints"))


def _spec_again(run: RunRecord) -> tuple[JobSpec, Path]:
    """Return the run's specification, and the folder it was submitted from."""
    data = files.read_json(run.run_dir / "spec.json")
    if data is None:
        raise RequestError(f"the spec.json of run {run.run_id} cannot be read", hint="submit a new run")
    spec = load_spec(data)
    if run_record.list_names(run.run_dir / "attempts"):  # it has started, so what it waited for is over
        spec = replace(spec, directives=tuple(pair for pair in spec.directives if pair[0] != "dependency"))
    return spec, Path(str(data.get("workdir") or run.root))
