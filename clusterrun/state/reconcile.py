"""The state of runs, from the scheduler's queue, accounting, and the runs' own records.

One query of the queue covers all runs, one query of accounting those that left it without an end record. Nothing is
guessed: a run without evidence is UNKNOWN, and the reason says which sources were queried.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from clusterrun.base.decode import as_int
from clusterrun.base.job import JobId, JobStatus, Outcome, one_cluster, outcome_of, split_tasks, token_part
from clusterrun.base.units import format_duration
from clusterrun.records import progress, run_record
from clusterrun.records.end_records import end_of, load_hold, status_of, unknown_status
from clusterrun.records.ownership import JobIndex
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import submissions
from clusterrun.run_folder.claims import Claim
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.terminal import tables

#: Seconds after its end for which a run is still queried: Slurm may know it, and a requeue may bring it back
#: (MinJobAge is 300 s by default; sites set minutes to hours).
QUERIED_AFTER_END = 86_400
#: Seconds after submission before accounting is trusted: rows have appeared up to 5 s late.
ACCOUNTING_LAG = 15
#: Seconds after a cancel in which accounting is queried for who did it: its rows may come late.
NAMED_WITHIN = 600
#: Seconds by which the recorded submission time and Slurm's may differ; a greater difference means a reused job id.
_SAME_SUBMISSION = 300


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a job. ``record`` is None for an external job, ``note`` says which source did not respond.

    ``as_of`` is None for a current state; for an older one it is the epoch second at which it was last seen. ``copies``
    are other pending or running jobs of the same submission, ``others`` those of the run's other submissions.
    """

    record: RunRecord | None
    status: JobStatus
    note: str = ""
    as_of: int | None = None
    copies: tuple[JobId, ...] = ()
    others: tuple[JobId, ...] = ()

    @property
    def is_old(self) -> bool:
        """Whether the state is older than this query, because Slurm did not respond."""
        return self.as_of is not None or (self.record is None and bool(self.note))

    @property
    def change_key(self) -> tuple[str, ...]:
        """What differs between two answers if the job changed; its run time always differs, and does not count."""
        job = self.status
        return str(job.id), job.tasks, job.state, job.reason, job.nodes, str(job.restarts), "old" * self.is_old

    def aged(self, seconds: float) -> RunState:
        """Return the state so many seconds later: the run time of a running job has grown."""
        job = self.status
        if job.state != "RUNNING" or job.elapsed is None or self.is_old:
            return self
        return replace(self, status=replace(job, elapsed=job.elapsed + int(seconds)))

    def _repr_html_(self) -> str:
        return _as_html([self])


class Listing(NamedTuple):
    """The states of jobs from one query. ``age`` is the age of the queue's answer in seconds, 0 if it is not cached.

    ``answer`` is the queue's answer if it is current, to join it with further runs.
    """

    states: Sequence[RunState] = ()
    age: float = 0.0
    answer: Answer | None = None

    def _repr_html_(self) -> str:
        return _as_html(self.states)


def _as_html(states: Sequence[RunState]) -> str:
    """Return jobs as a table for a notebook."""
    rows = [
        (str(state.status.id), state.record.name if state.record else state.status.name, state.status.state,
         format_duration(state.status.elapsed) if state.status.elapsed is not None else "", state.status.nodes,
         state.note or state.status.reason)
        for state in states
    ]  # fmt: skip
    return tables.as_html(("JOBID", "NAME", "STATE", "TIME", "NODES", "REASON"), rows)


def reconcile(
    store: Store, scheduler: Scheduler, runs: Sequence[RunRecord], *, now: float | None = None,
    answer: Answer | None = None,
) -> list[RunState]:  # fmt: skip
    """Return the states of runs of one scheduler, in their order, with at most one query of queue and accounting.

    ``answer`` is a current answer of the queue, if the caller has one. Interrupted submissions are repaired, and ends
    that are seen are recorded.
    """
    now = time.time() if now is None else now
    mine, theirs = [run for run in runs if run.mine], [run for run in runs if not run.mine]
    if answer is None or not mine:
        answer = _query(scheduler, [run for run in mine if needs_query(run, now)])
    found = _join(store, scheduler, mine, answer, now)
    if theirs:  # a query without ids shows the jobs of this user only
        ids = [run.job_id for run in theirs if run.job_id is not None]
        found += _join(store, scheduler, theirs, scheduler.query(ids) if ids else Answer(), now)
    by_submission = {state.record.submission.key: state for state in found if state.record is not None}
    return [by_submission[run.submission.key] for run in runs]


def _query(scheduler: Scheduler, runs: Sequence[RunRecord]) -> Answer:
    """Return the queue. Of local jobs, which are never forgotten, it has those since the oldest job of these runs."""
    if not runs:
        return Answer(complete=False)
    jobs = [JobId.parse(one.job_id) for run in runs for one in run.submissions if one.job_id]
    if scheduler.local is None or any(run.job_id is None for run in runs):
        return scheduler.query()
    return scheduler.local.query_since(min(jobs, key=lambda job: job.number))


def _join(store: Store, scheduler: Scheduler, runs: Sequence[RunRecord], answer: Answer, now: float) -> list[RunState]:
    jobs, last, cluster = JobIndex(answer.jobs), JobIndex(answer.last), one_cluster(scheduler.cluster)
    runs = [_claimed(store, _healed(store, run, jobs, answer.complete, now), jobs, cluster) for run in runs]
    absent = [run for run in runs if answer.complete and (_needs_accounting(run, jobs) or _is_unnamed(run, jobs, now))]
    past, ended = Answer(), dict[JobId, list[JobStatus]]()
    if absent:
        ids = [run.job_id for run in absent if run.job_id is not None]
        past = scheduler.account(ids, min(run.submission.at for run in absent) - 3600)
    for job in (one for row in past.jobs if row.is_over for one in split_tasks(row)):
        ended.setdefault(JobId(job.id.base, job.id.task), []).append(job)

    nothing = past._replace(jobs=())

    def of(run: RunRecord) -> Answer:
        if not ended or (job := run.job_id) is None:
            return nothing
        return past._replace(jobs=ended.get(JobId(job.base, job.task), ()))

    found = [_with_canceller(store, _state(store, run, jobs, answer, of(run), now), of(run)) for run in runs]
    found = [_with_others(state, jobs) for state in found]
    return found if answer.complete else [_last_known(state, last, answer) for state in found]


def _is_unnamed(run: RunRecord, jobs: JobIndex, now: float) -> bool:
    """Return whether a run was cancelled a short time ago, by whom only accounting knows."""
    submission = run.submission
    if submission.cancel_asked or run.job_id is None:
        return False
    if (final := submission.final) is not None:
        is_new = now - (as_int(final.get("ended")) or submission.at) < NAMED_WITHIN
        return is_new and final.get("state") == "CANCELLED" and final.get("cancelled_by") is None
    job = jobs.own(run) or end_of(run)
    return job is not None and job.state == "CANCELLED"


def _with_canceller(store: Store, state: RunState, past: Answer) -> RunState:
    """Return a cancelled run's state with who cancelled it, and record that, if accounting has it."""
    run, job = state.record, state.status
    assert run is not None
    if job.state != "CANCELLED" or job.cancelled_by is not None:
        return state
    known = (run.submission.final or {}).get("cancelled_by")
    user = as_int(known) if known is not None else _accounted_canceller(run, past)
    if user is None:
        return state
    if known is None and run.submission.final is not None:
        final = {**run.submission.final, "cancelled_by": user}
        with suppress(OSError):  # a query must work on a full disk and in another user's folder
            run = store.save_submission(run, replace(run.submission, final=final))
    return replace(state, record=run, status=replace(job, cancelled_by=user))


def _accounted_canceller(run: RunRecord, past: Answer) -> int | None:
    if not past.jobs:
        return None
    claim = run_record.claim_of(run)
    rows = (row for row in past.jobs if row.cancelled_by is not None and _is_accounted(row, run, claim))
    row = max(rows, key=lambda one: one.ended or 0, default=None)
    return row.cancelled_by if row is not None else None


def _with_others(state: RunState, jobs: JobIndex) -> RunState:
    assert state.record is not None
    copies = [job.id for job in jobs.of(state.record) if not job.is_over and job.id.base != state.status.id.base]
    others = [job.id for job in jobs.others(state.record) if not job.is_over]
    return replace(state, copies=tuple(copies), others=tuple(others)) if copies or others else state


def _last_known(state: RunState, last: JobIndex, answer: Answer) -> RunState:
    """Return the last known state if the query failed: a failed query changes no state."""
    run = state.record
    if run is None or run.job_id is None or state.status.outcome is not Outcome.UNKNOWN:
        return state
    job = last.own(run)
    if job is None or job.is_over:
        return state
    return RunState(run, _with_end(run, job), answer.note, answer.last_at)


def _state(store: Store, run: RunRecord, jobs: JobIndex, answer: Answer, past: Answer, now: float) -> RunState:
    submission = run.submission
    if run.job_id is None:  # its submission is in progress, or was cut off
        return _unsubmitted(run)
    job = jobs.own(run)
    if job is not None:
        if job.id.base != run.job_id.base:  # the recorded id came from a banner; the token is right
            run = _moved(store, run, submission.job(job.id.base))
        job = _with_end(run, job)
        return RunState(_record_end(store, run, job), job)
    ended = end_of(run) if submission.final is None or needs_query(run, now) else None
    if ended is not None and _is_news(ended, submission.final):
        return RunState(_record_end(store, run, ended), ended)
    if submission.final is not None:
        return RunState(run, _from_final(run, submission.final))
    if not answer.complete:
        return RunState(run, unknown_status(run, "unknown: the scheduler is not responding"), answer.note)
    return _absent(store, run, past, now)


def _is_news(ended: JobStatus, final: Mapping[str, Any] | None) -> bool:
    """Return whether an end record says more than the end that was seen, which stays otherwise.

    It does if Slurm has started the job once more since, or if the ranks' end records came late: the job succeeded.
    """
    if final is None:
        return True
    seen = as_int(final.get("restarts"))
    if seen is None or (ended.restarts or 0) > seen:
        return True
    return ended.outcome is Outcome.DONE and final.get("state") == "FAILED"


def _absent(store: Store, run: RunRecord, past: Answer, now: float) -> RunState:
    """Return the state of a run that is not in the queue and has no end record."""
    assert run.job_id is not None
    try:
        claim, readable = run_record.read_claim(run), True
    except OSError:
        claim, readable = None, False
    closed = [job for job in past.jobs if _is_accounted(job, run, claim)]
    if closed:
        job = max(closed, key=lambda j: j.ended or 0)
        return RunState(_record_end(store, run, job), job)
    if claim is not None:
        why = "the job left the queue without recording how it ended; a node or the controller may have failed"
        return RunState(run, unknown_status(run, why), past.note)
    if not readable or not run.mine:
        why = "the job left the queue, and its records cannot be read" if not readable else "the job left the queue"
        return RunState(run, unknown_status(run, why), past.note)
    if not run.cluster:
        return RunState(run, unknown_status(run, "the job is not in the queue, and its cluster is unknown"))
    if run.submission.cancel_asked:
        job = unknown_status(run, "cancelled while pending")
        return RunState(run, replace(job, state="CANCELLED", outcome=Outcome.CANCELLED, source="record"))
    if now - run.submission.at < ACCOUNTING_LAG:
        return RunState(run, unknown_status(run, "just submitted; not seen in the queue yet"))
    if not past.complete:
        why = "the job is not in the queue, and Slurm accounting (sacct) is not responding"
        return RunState(run, unknown_status(run, why), past.note)
    why = "the job never started, and Slurm has no record of it; it was cancelled, or the controller crashed"
    return RunState(run, replace(unknown_status(run, why), outcome=Outcome.LOST), past.note)


def _is_accounted(job: JobStatus, run: RunRecord, claim: Claim | None) -> bool:
    """Return whether a row of accounting, of the run's job id, is the run's: by its token or, if renamed, its claim."""
    if not (run.mine or job.user == run.user):
        return False
    if token_part(job) == run.submission.token[:8]:
        return True
    return claim is not None and claim.job == job.id.base and job.submitted is not None and (
        abs(job.submitted - run.submission.at) < _SAME_SUBMISSION
    )  # fmt: skip


def _with_end(run: RunRecord, job: JobStatus) -> JobStatus:
    """Add what the queue does not show, the exit status and the restarts, from the run's own records."""
    claim = run_record.claim_of(run)
    restarts = claim.restart if claim else job.restarts
    if job.outcome is Outcome.RUNNING:
        return replace(job, restarts=restarts)
    ended = end_of(run)
    if ended is not None and load_hold(run) is not None:  # it failed; what ended its hold does not count
        return replace(job, state=ended.state, restarts=restarts, exit_status=ended.exit_status, outcome=ended.outcome)
    status = ended.exit_status if ended else job.exit_status
    state = job.state
    # the end record came late; or Slurm means an earlier start, which was requeued in its grace time (24.05 and later)
    if ended is not None and status == 0 and (state == "FAILED" or (state, ended.state) == ("PREEMPTED", "COMPLETED")):
        state = "COMPLETED"
    return replace(job, state=state, restarts=restarts, exit_status=status, outcome=outcome_of(state, status))


def _record_end(store: Store, run: RunRecord, job: JobStatus) -> RunRecord:
    """Record an end that was seen, or remove one that a requeue has undone."""
    known = run.submission.final
    if (known and known.get("state")) == (job.state if job.is_final else None):
        return run
    new: dict[str, Any] | None = None
    if job.is_final:
        metrics = progress.last_metrics(run)
        new = {
            "state": job.state, "reason": job.reason, "exit_status": job.exit_status, "ended": job.ended,
            "nodes": job.nodes, "elapsed": job.elapsed, "restarts": job.restarts, "source": job.source,
            "started": job.started, "time_limit": job.time_limit, "partition": job.partition,
            "cancelled_by": job.cancelled_by, "figures": metrics and metrics._asdict(),
        }  # fmt: skip
    try:
        return store.save_submission(run, replace(run.submission, final=new))
    except OSError:
        return run  # a query must work on a full disk and in another user's folder


def _from_final(run: RunRecord, final: Mapping[str, Any]) -> JobStatus:
    state, status = str(final.get("state", "UNKNOWN")), as_int(final.get("exit_status"))
    numbers: dict[str, Any] = {
        key: as_int(final.get(key)) for key in ("ended", "elapsed", "restarts", "started", "time_limit", "cancelled_by")
    }
    return status_of(
        run,
        state=state,
        outcome=outcome_of(state, status),
        reason=str(final.get("reason") or ""),
        exit_status=status,
        nodes=str(final.get("nodes") or ""),
        partition=str(final.get("partition") or ""),
        **numbers,
    )


def figures(run: RunRecord) -> progress.Metrics | None:
    """Return the last metrics of a run's training; after its end, those that were recorded with it."""
    recorded = (run.submission.final or {}).get("figures", ())
    return progress.last_metrics(run) if recorded == () else progress.as_metrics(recorded)


def state_from_records(store: Store, run: RunRecord, why: str) -> RunState:
    """Return the state of a run from its own records alone; ``why`` says why its scheduler was not queried."""
    if run.submission.final is not None:
        return RunState(run, _from_final(run, run.submission.final))
    ended = end_of(run)
    if ended is not None:
        return RunState(_record_end(store, run, ended), ended)
    return RunState(run, unknown_status(run, why), why)


def _unsubmitted(run: RunRecord) -> RunState:
    from clusterrun.system.processes import submitter_is_alive

    settle = f"clusterrun submit --recover {run.run_id}"
    if run.submission.state == submissions.NOT_SUBMITTED:
        why = f"never submitted: the submission was interrupted; submit the run now with `{settle}`"
    elif submitter_is_alive(run.submission.submitter):
        why = "being submitted"
    else:
        why = f"unknown whether the run was submitted; check with `{settle}`"
    return RunState(run, unknown_status(run, why))


def needs_query(run: RunRecord, now: float) -> bool:
    """Return whether the scheduler may know more about a run than its own records."""
    final = run.submission.final
    return final is None or now - (as_int(final.get("ended")) or run.submission.at) < QUERIED_AFTER_END


def _needs_accounting(run: RunRecord, jobs: JobIndex) -> bool:
    if run.job_id is None or run.submission.final is not None:
        return False
    return jobs.own(run) is None and end_of(run) is None


def _healed(store: Store, run: RunRecord, jobs: JobIndex, answered: bool, now: float) -> RunRecord:
    if run.submission.state == submissions.ACCEPTED:
        return run
    from clusterrun.state.settle import settle_submission  # most queries settle none

    try:
        return settle_submission(store, run, jobs, answered, now)
    except OSError:  # a query must work on a full disk and in another user's folder
        return run


def _claimed(store: Store, run: RunRecord, jobs: JobIndex, cluster: str) -> RunRecord:
    """Return the run with the job id and cluster of its claim: if it was submitted twice, the job that runs."""
    if run.submission.final is not None and not jobs.of(run):
        return run
    claim = run_record.claim_of(run)
    if claim is not None and run.job_id is not None and (
        claim.job != run.job_id.base or (claim.cluster and claim.cluster != run.cluster)
    ):  # fmt: skip
        return _moved(store, run, run.submission.job(claim.job), claim.cluster)
    if not run.cluster and cluster and run.job_id is not None and jobs.own(run) is not None:
        return _moved(store, run, run.job_id, cluster)
    return run


def _moved(store: Store, run: RunRecord, job: JobId, cluster: str = "") -> RunRecord:
    try:
        return store.commit(run, job, cluster)
    except OSError:  # a query must work on a full disk and in another user's folder
        return replace(run, submissions=(*run.submissions[:-1], replace(run.submission, job_id=str(job))))


def record_cancel(store: Store, run: RunRecord, now: float, final: Mapping[str, Any] | None = None) -> RunRecord:
    """Record when a cancel was sent, 0 if it was refused, and the end of a job that was cancelled while pending.

    Raises OSError.
    """
    return store.save_submission(
        run, replace(run.submission, cancel_asked=int(now), final=final or run.submission.final)
    )
