"""Cancelling and holding: only what is ours, and only what the scheduler has just shown to be it.

A job id alone is not enough: after a controller crash it may be another job's. So a job is cancelled only where
the answer to the question before it carried the run's own token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from clusterrun.errors import Ambiguous, NoSuchJob, RequestError, SchedulerError
from clusterrun.job import JobId, Outcome
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.scheduler import Cancelled, Scheduler
from clusterrun.state import reconcile
from clusterrun.state.reconcile import RunState

Results = list[tuple[RunState, Cancelled]]


def cancel(
    targets: Sequence[RunState],
    user: str,
    scheduler_of: Callable[[RunRecord | None], Scheduler],
    store_of: Callable[[RunRecord], Store],
) -> Results:
    """Cancel jobs, one request to each scheduler, and tell of each what became of it, in the order asked.

    Raises, before anything is cancelled, NoSuchJob for another user's job, Ambiguous for a submission that was cut off,
    and SchedulerError where a scheduler does not answer.
    """
    for target in targets:
        _check(target, user)
    found: dict[int, Cancelled] = {}
    asked: dict[str, list[int]] = {}
    for place, target in enumerate(targets):
        run = target.record
        if run is not None and run.job_id is None:
            store_of(run).discard(run)  # never submitted: its folder is all there is
            found[place] = Cancelled(target.status.id, done=True, said="it was never submitted; its folder is removed")
        elif _may_run(target) or target.copies:
            asked.setdefault(run.scheduler if run else "slurm", []).append(place)
        else:
            found[place] = Cancelled(target.status.id, done=False, said=_over(target))
    schedulers = {name: scheduler_of(targets[places[0]].record) for name, places in asked.items()}
    for name, places in asked.items():
        wanted = [(place, job) for place in places for job in _jobs(targets[place])]
        results = schedulers[name].cancel([job for _, job in wanted])
        for (place, _), result in zip(wanted, results, strict=True):
            if place not in found or found[place].done:  # one failure is the result of the whole run
                found[place] = result
        for place in places:
            run, result = targets[place].record, found[place]
            if result.done and run is not None:
                reconcile.record_cancel(store_of(run), run, time.time())
    return [(target, found[place]) for place, target in enumerate(targets)]


def hold(target: RunState, user: str, scheduler: Scheduler, *, release: bool) -> None:
    """Hold one job of ours that waits, or release it.

    Raises NoSuchJob for another user's, RequestError for one that does not wait, and what ``cancel`` raises.
    """
    _check(target, user, to="hold it")
    if target.record is None and not target.status.user:
        raise NoSuchJob(f"it is not known whose job {target.status.id} is", hint="only its owner can hold it")
    if target.status.state != "PENDING":
        # Slurm takes it of a running job too, which then waits for a release once it is requeued: nobody means that
        raise RequestError(f"job {target.status.id} is {target.status.state}: only a job that waits can be held")
    scheduler.hold(target.status.id, release=release)


def _jobs(target: RunState) -> list[JobId]:
    """Every job that a run has in the queue: its own, and copies of its submission."""
    own = [target.status.id] if _may_run(target) else []
    return [*own, *target.copies]


def _check(target: RunState, user: str, to: str = "cancel it") -> None:
    run, job = target.record, target.status
    owner = run.user if run else job.user
    if not run.mine if run else owner not in ("", user):
        raise NoSuchJob(f"job {job.id} belongs to {owner}, not to you", hint=f"only its owner can {to}")
    if run is not None and run.job_id is None and run.submission.state != run_record.NOT_SUBMITTED:
        raise Ambiguous(
            f"it is not known whether run {run.run_id} was submitted", hint=f"clusterrun submit --recover {run.run_id}"
        )
    if target.as_of is not None or (target.note and job.outcome is Outcome.UNKNOWN):
        raise SchedulerError(
            "the scheduler did not answer, so nothing was done", said=target.note, hint="try again in a moment"
        )


def _may_run(target: RunState) -> bool:
    """Whether there is something to end; of an unknown local job the supervisor may live on another machine."""
    outcome = target.status.outcome
    return outcome is Outcome.RUNNING or (outcome is Outcome.UNKNOWN and target.status.id.is_local)


def _over(target: RunState) -> str:
    job = target.status
    if job.outcome in (Outcome.UNKNOWN, Outcome.LOST):
        return f"nothing to cancel: {job.reason}"
    return f"already over: {job.state}"
