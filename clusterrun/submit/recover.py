"""Finish an interrupted submission: find its job, or submit it now with the same token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterrun.base.decode import Damaged, build
from clusterrun.base.errors import Ambiguous, NoSuchJob, RequestError
from clusterrun.base.job import LOCAL, one_cluster
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import files, submissions
from clusterrun.scheduler import Scheduler, Submission
from clusterrun.submit import protocol
from clusterrun.submit.checks import check_secrets
from clusterrun.system import processes, shell


def recover(
    run: RunRecord, store: Store, scheduler_of: Callable[[RunRecord], Scheduler], environ: Mapping[str, str],
    notify: Callable[[str], None],
) -> RunRecord:  # fmt: skip
    """Finish a run's submission and return its record with the job id; ``store`` is that of the run's project.

    Of a task of a sweep, the submission of all its tasks is finished.

    Raises NoSuchJob for another user's run, Ambiguous if it is being submitted or the scheduler does not respond, and
    the errors of ``scheduler_of`` and :func:`protocol.submit`.
    """
    if not run.mine:
        raise NoSuchJob(f"run {run.run_id} belongs to {run.user}, not to you", hint="only that user can submit it")
    of_sweep = _is_sent_with_a_sweep(run)
    if run.submission.state == submissions.ACCEPTED and not of_sweep:
        return run
    if run.submission.state != submissions.ACCEPTED and processes.submitter_is_alive(run.submission.submitter):
        raise Ambiguous(
            f"run {run.run_id} is already being submitted by another command", hint="wait for that command to end"
        )
    scheduler = scheduler_of(run)
    logs = store.prepare(run.shared)
    if of_sweep:
        from clusterrun.submit.sweep_send import recover_sweep  # only a sweep needs it

        recover_sweep(run, store, scheduler, lambda one: rebuild_submission(one, logs, environ), notify)
        return _as_recorded(run)
    with store.submitting(run):
        run = _as_recorded(run)  # another command may have finished it meanwhile
        if run.submission.state == submissions.ACCEPTED:
            return run
        job = protocol.find_job(scheduler, [run], protocol.Clock(), notify)
        if job is not None:
            return store.commit(run, job, one_cluster(scheduler.cluster))
        run = protocol.begin(store, run)
        return protocol.submit(store, scheduler, run, rebuild_submission(run, logs, environ), notify=notify)


def _as_recorded(run: RunRecord) -> RunRecord:
    return run_record.load(run.run_dir) or run


def _is_sent_with_a_sweep(run: RunRecord) -> bool:
    """Return whether the run is a task of an array, or on this machine a job of a sweep: all are sent together."""
    return run.submission.task is not None or (run.scheduler == LOCAL and bool(run.sweep))


@dataclass(frozen=True)
class _Sent:
    """What spec.json says about how a run was sent."""

    workdir: str = ""
    secrets: tuple[str, ...] = ()
    sbatch_args: tuple[str, ...] = ()
    directives: tuple[tuple[str, str], ...] = ()
    gpus_per_node: int | None = None
    time_limit: int | None = None
    tasks_per_node: int = 1


def rebuild_submission(run: RunRecord, logs: Path, environ: Mapping[str, str]) -> Submission:
    """Return the submission of a staged run, from its files: the same script, the same token.

    Raises RequestError if its spec.json is damaged, or if this shell lacks a variable of --secret.
    """
    try:
        spec = build(_Sent, files.read_json(run.run_dir / "spec.json") or {})
    except Damaged as error:
        raise RequestError(f"the spec.json of run {run.run_id} is invalid: {error}", hint="submit a new run") from None
    clean, _ = shell.scrub(environ)
    check_secrets(spec.secrets, clean)
    return Submission(
        run_id=run.run_id,
        run_dir=run.run_dir,
        token=run.submission.token,
        script=run.sent_script,
        workdir=Path(spec.workdir or run.root),
        logs=logs,
        env=clean,
        umask=0o027 if run.shared else 0o077,
        argv=spec.sbatch_args,
        nodes=run.nodes,
        tasks_per_node=spec.tasks_per_node,
        gpus_per_node=spec.gpus_per_node or 0,
        time_limit=spec.time_limit,
        dependency=dict(spec.directives).get("dependency", ""),
    )
