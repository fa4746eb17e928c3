"""Whether a run can be resumed: it has ended, it is not finished, and it is this user's."""

from __future__ import annotations

from clusterrun.base.errors import Ambiguous, NoSuchJob, RequestError, SchedulerError
from clusterrun.base.job import Outcome
from clusterrun.scheduler import Answer
from clusterrun.state.reconcile import ACCOUNTING_LAG, RunState


def refuse_to_resume(state: RunState, now: float, answer: Answer | None = None) -> None:
    """Raise unless a run has ended and is not finished; ``now`` is in epoch seconds, ``answer`` the queue's.

    Raises RequestError for an active or finished run, NoSuchJob for another user's, SchedulerError if the scheduler
    does not respond, and Ambiguous for a job that was submitted a moment ago.
    """
    run, job = state.record, state.status
    assert run is not None
    if not run.mine:
        raise NoSuchJob(f"job {job.id} belongs to {run.user}, not to you", hint="only the run's owner can resume it")
    if job.outcome is Outcome.DONE:
        raise RequestError(f"job {job.id} is {job.state}: there is nothing left to resume", hint="submit a new run")
    _refuse_active(state)
    silence = answer.note if answer is not None and not answer.complete else ""
    if job.outcome is Outcome.UNKNOWN:
        silence = silence or state.note
    if silence:
        raise SchedulerError(
            f"cannot tell whether job {job.id} has ended, so nothing was submitted", detail=silence, hint="try again"
        )
    if job.outcome is Outcome.UNKNOWN and now - run.submission.at < ACCOUNTING_LAG:
        raise Ambiguous(f"job {job.id} was just submitted and is not in the queue yet", hint="try again in a moment")


def _refuse_active(state: RunState) -> None:
    """Raise RequestError if a job of the run is pending or running, of whichever submission."""
    job, beside = state.status, (*state.copies, *state.others)
    if job.outcome is Outcome.RUNNING or beside:
        active, word = (beside[0], "active") if beside else (job.id, job.state)
        raise RequestError(f"job {active} is {word}: this run has not ended", hint=f"clusterrun cancel {active}")
