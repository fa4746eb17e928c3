"""Cancel, hold and release the user's own jobs, and refuse to resume a run that has not ended.

A job id alone is not enough: after a controller crash it may belong to another job. So a job is cancelled only if the
query just before showed the run's own token.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NoReturn

from clusterrun.base.errors import Ambiguous, CommandError, NoSuchJob, RequestError, SchedulerError
from clusterrun.base.job import JobId, JobStatus, Outcome, split_tasks
from clusterrun.records.ownership import JobIndex
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import submissions
from clusterrun.scheduler import Answer, Cancelled, Scheduler
from clusterrun.state.reconcile import ACCOUNTING_LAG, RunState


def cancel(
    targets: Sequence[RunState], user: str, scheduler_of: Callable[[RunState], Scheduler],
    store_of: Callable[[RunRecord], Store],
) -> list[tuple[RunState, Cancelled]]:  # fmt: skip
    """Cancel jobs, with one request per scheduler, and return the result of each, in their order.

    The results name a scheduler that does not respond and a record that cannot be written. Raises,
    before anything is cancelled, NoSuchJob for another user's job, Ambiguous for an interrupted submission, and
    SchedulerError if it is not known whether a job is active.
    """
    requests = defaultdict[str, list[RunState]](list)
    for target in targets:
        _check(target, user)
        if _jobs_of(target):
            requests[target.scheduler].append(target)
    groups = [(scheduler_of(group[0]), group) for group in requests.values()]
    results: dict[str, Cancelled] = {}
    for scheduler, group in groups:
        results |= _cancel_on(scheduler, group, store_of)
    was_refused = not all(result.done for result in results.values())
    return [
        (target, results.get(target.key) or _without_request(target, store_of, keep=was_refused)) for target in targets
    ]


def _without_request(target: RunState, store_of: Callable[[RunRecord], Store], *, keep: bool) -> Cancelled:
    """Return the result for a job for which no request was sent.

    A run that was never submitted is only a folder, which is deleted; ``keep`` it after a cancel that failed.
    """
    job = target.status.id
    if not target.is_unsubmitted:
        return Cancelled(job, done=False, detail=_nothing_to_cancel(target.status))
    if keep:
        detail = "the run was never submitted; its folder is kept, since other jobs were not cancelled"
        return Cancelled(job, done=False, detail=detail)
    store_of(target.run).discard(target.run)
    return Cancelled(job, done=True, detail="the run was never submitted; its folder was removed")


def _cancel_on(
    scheduler: Scheduler, targets: Sequence[RunState], store_of: Callable[[RunRecord], Store]
) -> dict[str, Cancelled]:
    """Cancel the jobs of one scheduler and record that; a job's result, by its key, names a failure to write."""
    # before the request, so that a job that is saving is not requeued
    problems = [_save(target, store_of, cancel_asked=int(time.time())) for target in targets]
    results = _request(scheduler, targets)
    return {
        target.key: _recorded(target, result, problem, store_of)
        for target, result, problem in zip(targets, results, problems, strict=True)
    }


def _recorded(target: RunState, result: Cancelled, problem: str, store_of: Callable[[RunRecord], Store]) -> Cancelled:
    """Correct the record after the request, and return the result with what could not be written.

    ``problem`` is why nothing was recorded before the request, empty if something was.
    """
    if not (result.done or result.may_be):
        _save(target, store_of)  # as it was: the request was refused
    if not result.done:
        return result
    if _never_started(target):  # such a job leaves no other record of its end
        now = int(time.time())
        problem = _save(target, store_of, cancel_asked=now, final={**_CANCELLED, "ended": now})
    return result._replace(detail="; ".join(filter(None, (result.detail, problem))))


def confirm(
    results: Sequence[tuple[RunState, Cancelled]], answer: Answer, is_queued: Callable[[RunState], bool]
) -> list[tuple[RunState, Cancelled]]:
    """Compare results with the queue after the cancel: a job that it still shows as active is not cancelled.

    Without an answer it is not known whether a job has ended, also one that has by its records. ``is_queued`` returns
    whether a job is in this queue.
    """
    active = list[JobStatus]()
    for row in answer.jobs:
        if _is_active(row):
            active += split_tasks(row)
    index, confirmed = JobIndex(active), list[tuple[RunState, Cancelled]]()
    for target, result in results:
        own = index.of(target.record) if target.record is not None else _same_job(target, active)
        is_checked = is_queued(target)
        confirmed.append((target, _confirmed(target, result, own, answer) if is_checked else result))
    return confirmed


def _same_job(target: RunState, jobs: Sequence[JobStatus]) -> list[JobStatus]:
    """Return an external job, or the tasks of its array."""
    return [job for job in jobs if target.status.id.includes(job.id)]


def _is_active(job: JobStatus) -> bool:
    return not (job.is_over or job.state in _ENDING)


def _confirmed(target: RunState, result: Cancelled, active: Sequence[JobStatus], answer: Answer) -> Cancelled:
    was_refused = not result.done and _jobs_of(target)
    if target.is_unsubmitted or was_refused:
        return result
    if not answer.complete:
        detail = f"Slurm did not confirm that it has ended: {answer.note}"
        return result._replace(done=False, may_be=True, detail=detail)
    if active:
        return result._replace(done=False, alive=True, detail=f"Slurm shows job {active[0].id} as {active[0].state}")
    return result


def _request(scheduler: Scheduler, targets: Sequence[RunState]) -> list[Cancelled]:
    """Cancel all jobs of these targets, and return a result for each target: the first failure, if there is one."""
    jobs = list(map(_jobs_of, targets))
    try:
        answers = iter(scheduler.cancel([*chain.from_iterable(jobs)]))
    except SchedulerError as error:
        detail = ": ".join(filter(None, (error.message, error.detail)))
        unanswered = isinstance(error, CommandError) and error.timed_out  # then it may be cancelled
        return [Cancelled(target.status.id, done=False, detail=detail, may_be=unanswered) for target in targets]
    return [min(islice(answers, len(ids)), key=lambda answer: answer.done) for ids in jobs]


def _jobs_of(target: RunState) -> list[JobId]:
    """Return the jobs to cancel; an unknown local job may run on another machine."""
    job = target.status
    is_unknown = job.outcome is Outcome.UNKNOWN and job.id.is_local
    return [job.id, *target.copies] if is_unknown or not job.is_over else [*target.copies]


def _save(target: RunState, store_of: Callable[[RunRecord], Store], **changes: Any) -> str:
    """Write a run's submission with these changes, and return why that failed, empty if it did not."""
    run = target.record
    if run is None:
        return ""
    try:
        store_of(run).save_submission(run, replace(run.submission, **changes))
    except OSError as error:
        return f"the record of run {run.run_id} cannot be written: {error.strerror}"
    return ""


def hold(target: RunState, user: str, scheduler: Scheduler, *, release: bool) -> None:
    """Hold a pending job of the user, or release it.

    Raises NoSuchJob for another user's job, RequestError for a job that is not pending, and what ``cancel`` raises.
    """
    _check(target, user, to="hold or release it")
    if not target.user:
        hint = "only the job's owner can hold or release it"
        raise NoSuchJob(f"the owner of job {target.status.id} is unknown", hint=hint)
    if target.status.state != "PENDING":
        # Slurm accepts it for a running job too, and holds that job after a requeue, which nobody expects
        raise RequestError(
            f"job {target.status.id} is {target.status.state}: only a pending job can be held or released"
        )
    scheduler.hold(target.status.id, release=release)


def _check(target: RunState, user: str, to: str = "cancel it") -> None:
    if not target.belongs_to(user):
        raise NoSuchJob(
            f"job {target.status.id} belongs to {target.user}, not to you", hint=f"only the job's owner can {to}"
        )
    if target.is_unsubmitted and target.run.submission.state != submissions.NOT_SUBMITTED:
        raise Ambiguous(
            f"cannot tell whether run {target.run_id} was submitted",
            hint=f"run `clusterrun submit --recover {target.run_id}`",
        )
    if target.note:
        raise SchedulerError(
            "the scheduler did not respond; nothing was done", detail=target.note, hint="try again in a moment"
        )


def refuse_to_resume(state: RunState, now: float, answer: Answer) -> None:
    """Raise unless a run has ended and is not finished; ``now`` is in epoch seconds, ``answer`` the queue's.

    Raises RequestError for an active or finished run, NoSuchJob for another user's, SchedulerError if the scheduler
    does not respond, and Ambiguous for a job that was submitted a moment ago.
    """
    run, job = state.run, state.status
    if not run.mine:
        raise NoSuchJob(f"job {job.id} belongs to {run.user}, not to you", hint="only the run's owner can resume it")
    if job.outcome is Outcome.DONE:
        raise RequestError(f"job {job.id} is {job.state}: there is nothing left to resume", hint="submit a new run")
    if beside := (*state.copies, *state.others):
        _refuse_active(beside[0], "active")
    if job.outcome is Outcome.RUNNING:
        _refuse_active(job.id, job.state)
    if silence := answer.note or state.note:
        raise SchedulerError(
            f"cannot tell whether job {job.id} has ended, so nothing was submitted", detail=silence, hint="try again"
        )
    if job.outcome is Outcome.UNKNOWN and now - run.submission.at < ACCOUNTING_LAG:
        raise Ambiguous(f"job {job.id} was just submitted and is not in the queue yet", hint="try again in a moment")


def _refuse_active(job: JobId, state: str) -> NoReturn:
    verb = "wait" if state in _ENDING else "cancel"
    raise RequestError(f"job {job} is {state}: this run has not ended", hint=f"clusterrun {verb} {job}")


#: States of a job that has been cancelled and whose last processes are being ended, or whose files are copied out.
_ENDING = frozenset({"COMPLETING", "STAGE_OUT"})
_CANCELLED = {"state": "CANCELLED", "reason": "cancelled while pending", "source": "record"}


def _never_started(target: RunState) -> bool:
    return target.status.state == "PENDING" and not target.is_old and not target.copies


def _nothing_to_cancel(job: JobStatus) -> str:
    if job.outcome in (Outcome.UNKNOWN, Outcome.LOST):
        return f"nothing to cancel: {job.reason}"
    return f"already ended: {job.state}"
