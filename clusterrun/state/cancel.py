"""Cancel, hold and release the user's own jobs.

A job id alone is not enough: after a controller crash it may belong to another job. So a job is cancelled only if the
query just before showed the run's own token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from clusterrun.base.errors import Ambiguous, CommandError, NoSuchJob, RequestError, SchedulerError
from clusterrun.base.job import JobId, Outcome
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.scheduler import Cancelled, Scheduler
from clusterrun.state import reconcile
from clusterrun.state.reconcile import RunState


def cancel(
    targets: Sequence[RunState],
    user: str,
    scheduler_of: Callable[[RunRecord | None], Scheduler],
    store_of: Callable[[RunRecord], Store],
) -> list[tuple[RunState, Cancelled]]:
    """Cancel jobs, with one request per scheduler, and return the result of each, in their order.

    Raises, before anything is cancelled, NoSuchJob for another user's job, Ambiguous for an interrupted submission, and
    SchedulerError if a scheduler does not respond.
    """
    for target in targets:
        _check(target, user)
    found: dict[int, Cancelled] = {}
    by_scheduler: dict[str, list[int]] = {}
    for index, target in enumerate(targets):
        run = target.record
        if run is not None and run.job_id is None:
            found[index] = Cancelled(
                target.status.id, done=True, detail="the run was never submitted; its folder was removed"
            )
        elif _may_run(target) or target.copies:
            by_scheduler.setdefault(run.scheduler if run else "slurm", []).append(index)
        else:
            found[index] = Cancelled(target.status.id, done=False, detail=_nothing_to_cancel(target))
    schedulers = {name: scheduler_of(targets[indices[0]].record) for name, indices in by_scheduler.items()}
    for name, indices in by_scheduler.items():
        wanted: list[tuple[int, JobId]] = []
        for index in indices:
            own = [targets[index].status.id] if _may_run(targets[index]) else []
            wanted += [(index, job) for job in (*own, *targets[index].copies)]
        noted = {index for index in indices if _note(targets[index], store_of)}
        try:
            results = schedulers[name].cancel([job for _, job in wanted])
        except SchedulerError as error:
            has_answered = not isinstance(error, CommandError) or not error.timed_out  # else it may be cancelled
            _forget(targets, noted if has_answered else (), store_of)
            raise
        for (index, _), result in zip(wanted, results, strict=True):
            if index not in found or found[index].done:  # one failure is the result of the whole run
                found[index] = result
        for index in indices:
            run = targets[index].record
            if found[index].done and run is not None and (index not in noted or _never_started(targets[index])):
                now = int(time.time())  # one that never starts leaves no other record of its end
                final = _CANCELLED | {"ended": now} if _never_started(targets[index]) else None
                reconcile.record_cancel(store_of(run), run, now, final)
        _forget(targets, {index for index in noted if not found[index].done and not found[index].may_be}, store_of)
    _discard_unsent(targets, store_of)  # last: if scancel fails, nothing was done
    return [(target, found[index]) for index, target in enumerate(targets)]


def hold(target: RunState, user: str, scheduler: Scheduler, *, release: bool) -> None:
    """Hold a pending job of the user, or release it.

    Raises NoSuchJob for another user's job, RequestError for a job that is not pending, and what ``cancel`` raises.
    """
    _check(target, user, to="hold or release it")
    if target.record is None and not target.status.user:
        hint = "only the job's owner can hold or release it"
        raise NoSuchJob(f"the owner of job {target.status.id} is unknown", hint=hint)
    if target.status.state != "PENDING":
        # Slurm accepts it for a running job too, and holds that job after a requeue, which nobody expects
        raise RequestError(
            f"job {target.status.id} is {target.status.state}: only a pending job can be held or released"
        )
    scheduler.hold(target.status.id, release=release)


def _check(target: RunState, user: str, to: str = "cancel it") -> None:
    run, job = target.record, target.status
    owner = run.user if run else job.user
    if not run.mine if run else owner not in ("", user):
        raise NoSuchJob(f"job {job.id} belongs to {owner}, not to you", hint=f"only the job's owner can {to}")
    if run is not None and run.job_id is None and run.submission.state != run_record.NOT_SUBMITTED:
        raise Ambiguous(
            f"cannot tell whether run {run.run_id} was submitted",
            hint=f"run `clusterrun submit --recover {run.run_id}`",
        )
    if target.as_of is not None or (target.note and job.outcome is Outcome.UNKNOWN):
        raise SchedulerError(
            "the scheduler did not respond; nothing was done", detail=target.note, hint="try again in a moment"
        )


_CANCELLED = {"state": "CANCELLED", "reason": "cancelled while pending", "source": "record"}


def _never_started(target: RunState) -> bool:
    return target.status.state == "PENDING" and not target.is_old and not target.copies


def _note(target: RunState, store_of: Callable[[RunRecord], Store]) -> bool:
    """Record the cancel before it is sent, so that a job that is saving is not requeued; return whether that worked.

    A disk that is full must not prevent a cancel.
    """
    with suppress(SchedulerError):
        if target.record is not None:
            reconcile.record_cancel(store_of(target.record), target.record, time.time())
            return True
    return False


def _forget(targets: Sequence[RunState], indices: Collection[int], store_of: Callable[[RunRecord], Store]) -> None:
    """Remove the record of cancels that were refused."""
    for index in indices:
        run = targets[index].record
        with suppress(SchedulerError):
            if run is not None:
                reconcile.record_cancel(store_of(run), run, run.submission.cancel_asked)


def _discard_unsent(targets: Sequence[RunState], store_of: Callable[[RunRecord], Store]) -> None:
    """Delete the runs that were never submitted, which are only folders."""
    for run in (target.record for target in targets):
        if run is not None and run.job_id is None:
            store_of(run).discard(run)


def _may_run(target: RunState) -> bool:
    """Return whether there may be something to cancel; an unknown local job may run on another machine."""
    outcome = target.status.outcome
    return outcome is Outcome.RUNNING or (outcome is Outcome.UNKNOWN and target.status.id.is_local)


def _nothing_to_cancel(target: RunState) -> str:
    job = target.status
    if job.outcome in (Outcome.UNKNOWN, Outcome.LOST):
        return f"nothing to cancel: {job.reason}"
    return f"already ended: {job.state}"
