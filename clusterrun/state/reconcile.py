"""The state of runs, from the scheduler's queue, accounting, and the runs' own records.

One query of the queue covers all runs, one query of accounting those that left it without an end record. Nothing is
guessed: a run without evidence is UNKNOWN, and the reason says which sources were queried.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from clusterrun.base.decode import as_int
from clusterrun.base.job import JobId, JobStatus, Outcome, one_cluster, outcome_of, split_tasks, token_part
from clusterrun.records import progress, run_record
from clusterrun.records.end_records import end_of, load_hold, status_of, unknown_status
from clusterrun.records.ownership import JobIndex
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import claims, submissions
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.terminal import tables

#: Seconds after its end for which a run is still queried: Slurm may know it, and a requeue may bring it back
#: (MinJobAge is 300 s by default; sites set minutes to hours).
QUERIED_AFTER_END = 86_400
#: Seconds after submission before accounting is trusted: rows have appeared up to 5 s late.
ACCOUNTING_LAG = 15
#: Seconds after a cancel in which accounting is queried for who did it: its rows may come late.
NAMED_WITHIN = 600
#: Seconds after which an abandoned submission without a job counts as never delivered: twice the lifetime of an
#: orphaned sbatch. On another host we cannot see the submitter, so we wait as long as the protocol may take.
SETTLED_AFTER, SETTLED_ELSEWHERE = 60, 300
#: What is recorded of an end beside its state and source, by the fields of JobStatus.
_KEPT_TEXTS = ("reason", "nodes", "partition")
_KEPT_NUMBERS = ("exit_status", "ended", "elapsed", "restarts", "started", "time_limit", "cancelled_by")
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
    def key(self) -> str:
        """What tells it from other jobs: a run's submission, or the job id."""
        return self.record.submission.key if self.record is not None else str(self.status.id)

    @property
    def run(self) -> RunRecord:
        """The record of a job that has one."""
        assert self.record is not None
        return self.record

    @property
    def run_id(self) -> str | None:
        return self.record.run_id if self.record is not None else None

    @property
    def subject(self) -> RunRecord | JobStatus:
        """What names the job, its user and its cluster: the run's record, else what Slurm shows."""
        return self.record or self.status

    @property
    def name(self) -> str:
        """The user's name for the job."""
        return self.subject.name

    @property
    def user(self) -> str:
        return self.subject.user

    @property
    def cluster(self) -> str:
        return self.subject.cluster

    @property
    def submitted(self) -> int | None:
        """When the job was submitted, in epoch seconds, of a run's several jobs this one; None if unknown."""
        return self.record.submission.at if self.record is not None else self.status.submitted

    @property
    def scheduler(self) -> str:
        return self.record.scheduler if self.record is not None else "slurm"

    @property
    def figures(self) -> progress.Metrics | None:
        """The last metrics of a run's training; after its end, those that were recorded with it."""
        if self.record is None:
            return None
        final = self.record.submission.final or {}
        if "figures" not in final:  # it has not ended, or `cancel` recorded its end
            return progress.last_metrics(self.record)
        return progress.as_metrics(final["figures"])

    def belongs_to(self, user: str) -> bool:
        """Return whether it is this user's; a job whose user is unknown may be."""
        return self.record.mine if self.record is not None else self.status.user in ("", user)

    @property
    def is_unsubmitted(self) -> bool:
        """Whether it is a run that has no job id: its submission is in progress, or was cut off."""
        return self.record is not None and self.record.job_id is None

    @property
    def is_alive(self) -> bool:
        """Whether it or a copy of it is active."""
        return not self.status.is_over or bool(self.copies)

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


class Target(NamedTuple):
    """A job that was named by ``text``: a run, or a job without a record here (``run`` is None).

    ``job`` is the id that named it; None if the run was named, by its id or its name: then all its live jobs are meant.
    """

    text: str
    run: RunRecord | None
    job: JobId | None = None

    @property
    def key(self) -> str:
        """What tells it from other jobs."""
        return self.run.submission.key if self.run is not None else self.text

    @property
    def job_id(self) -> JobId | None:
        """The id that named it, else that of its run's submission."""
        return self.job or (self.run.job_id if self.run is not None else None)

    @property
    def may_be_several(self) -> bool:
        """Whether it is a run that may have several live jobs, as it was submitted more than once."""
        return self.run is not None and self.job is None and len(self.run.submissions) > 1

    @property
    def is_part(self) -> bool:
        """Whether an array's task (``5_2``) or a component (``5+1``) was named."""
        return self.job is not None and (self.job.task, self.job.part) != (None, None)

    def covers(self, state: RunState) -> bool:
        """Return whether a job is the named one, or a task of the named array."""
        if self.run is not None:
            return state.key == self.key
        return self.job is not None and self.job.includes(state.status.id)


def runs_and_external_ids(targets: Iterable[Target]) -> tuple[list[RunRecord], list[JobId]]:
    """Return the runs among the named jobs, and the ids of the jobs without a record."""
    runs, ids = list[RunRecord](), list[JobId]()
    for target in targets:
        if target.run is not None:
            runs.append(target.run)
        elif target.job is not None:
            ids.append(target.job)
    return runs, ids


def runs_of(states: Iterable[RunState]) -> list[RunRecord]:
    """Return the runs among these jobs."""
    return [state.record for state in states if state.record is not None]


def job_ids(runs: Iterable[RunRecord]) -> list[JobId]:
    """Return the job ids of the runs that have one."""
    return [run.job_id for run in runs if run.job_id is not None]


class Listing(NamedTuple):
    """The states of jobs from one query. ``age`` is the age of the queue's answer in seconds, 0 if it is not cached.

    ``answer`` is the queue's answer if it is current, to join it with further runs.
    """

    states: Sequence[RunState] = ()
    age: float = 0.0
    answer: Answer | None = None

    @property
    def silence(self) -> str:
        """Why Slurm did not respond; empty if it did, or was not queried."""
        return self.answer.note if self.answer is not None else ""

    def _repr_html_(self) -> str:
        return _as_html(self.states)


def _as_html(states: Sequence[RunState]) -> str:
    from clusterrun.state.show import STATE_COLUMNS, state_row

    return tables.as_html(STATE_COLUMNS, list(map(state_row, states)))


def reconcile(
    store: Store, scheduler: Scheduler, runs: Sequence[RunRecord], *, now: float, answer: Answer | None = None
) -> list[RunState]:
    """Return the states of runs of one scheduler, all of this user or all of others, in their order.

    There is at most one query of queue and accounting; ``answer`` is a current answer of the queue, if the caller has
    one. Interrupted submissions are repaired, and ends that are seen are recorded.
    """
    answer = answer or _query(scheduler, runs, now)
    jobs, last, cluster = JobIndex(answer.jobs), JobIndex(answer.last), one_cluster(scheduler.cluster)
    runs = [identify(store, run, jobs, cluster, answered=answer.complete, now=now) for run in runs]
    known = [_known_state(store, run, jobs.own(run), now) for run in runs]
    past, accounted = _account(scheduler, runs, known, now) if answer.complete else (Answer(), {})
    states = []
    for run, state in zip(runs, known, strict=True):
        ended = _ended(run, accounted)
        if state is not None:
            joined = _with_canceller(store, state, ended)
        elif answer.complete:
            joined = _absent(store, run, ended, past, now)
        else:
            joined = _last_known(run, last, answer)
        states.append(_with_others(run, joined, jobs))
    return states


def _query(scheduler: Scheduler, runs: Sequence[RunRecord], now: float) -> Answer:
    """Return the queue. Of local jobs, which are never forgotten, it has those since the oldest job of these runs."""
    if not runs[0].mine:  # a query without ids shows the jobs of this user only
        ids = job_ids(runs)
        return scheduler.query(ids) if ids else Answer()
    runs = [run for run in runs if needs_query(run, now)]
    if not runs:
        return Answer(complete=False)
    if scheduler.local is None:
        return scheduler.query()
    jobs = list[JobId]()
    for run in runs:
        for submission in run.submissions:
            jobs.append(JobId.parse(submission.job_id or "L0"))  # without a recorded job it may have any
    return scheduler.local.query_since(min(jobs, key=lambda job: job.number))


def _account(
    scheduler: Scheduler, runs: Sequence[RunRecord], known: Sequence[RunState | None], now: float
) -> tuple[Answer, dict[tuple[str, int | None], list[JobStatus]]]:
    """Query accounting about runs of unknown state, and who cancelled others; return also its rows by number and task.

    ``known`` has the state of each run, None if it left the queue without an end record.
    """
    asked = []
    for run, state in zip(runs, known, strict=True):
        if state is None or _is_unnamed(run, state, now):
            asked.append(run)
    if not asked:
        return Answer(), {}
    past = scheduler.account(job_ids(asked), min(run.submission.at for run in asked) - 3600)
    rows: dict[tuple[str, int | None], list[JobStatus]] = {}
    for job in chain.from_iterable(map(split_tasks, past.jobs)):
        rows.setdefault((job.id.base, job.id.task), []).append(job)
    return past, rows


def identify(store: Store, run: RunRecord, jobs: JobIndex, cluster: str, *, answered: bool, now: float) -> RunRecord:
    """Return the run with the job that its submission became, and record that; ``cluster`` is the scheduler's.

    ``jobs`` is a scheduler answer, empty unless ``answered``. A submission that will not become a job any more is
    recorded as not submitted; it may still be accepted later.
    """
    from clusterrun.system.processes import submitter_is_alive

    row, submission = jobs.own(run), run.submission
    if row is None and submission.final is not None:
        return run
    if submission.state != submissions.ACCEPTED and submitter_is_alive(submission.submitter):
        return run
    number, where = _find_job(run, row, cluster)
    if number:
        return _with_job(store, run, submission.job(number), where)
    if submission.state == submissions.SUBMITTING and _is_settled(run, answered, now, was_sent=number is not None):
        return _saved(store, run, state=submissions.NOT_SUBMITTED)
    return run


def _find_job(run: RunRecord, row: JobStatus | None, cluster: str) -> tuple[str | None, str]:
    """Return the number of a run's job and its cluster: by its claim, its row of the queue, its record, its sweep.

    If it was submitted twice, the claim is that of the job that runs. A recorded id may be a banner's; the token that
    the queue shows is right. The number is empty if it is not known, None if the sweep's array was never sent.
    """
    if claim := run_record.claim_of(run):
        return claim.job, claim.cluster or run.cluster
    if row is not None:
        return row.id.base, run.cluster or cluster
    if run.job_id is not None:
        return run.job_id.base, run.cluster
    from clusterrun.records import sweeps  # most queries need none

    return sweeps.job_of(run) if run.submission.task is not None else "", run.cluster


def _with_job(store: Store, run: RunRecord, job: JobId, cluster: str) -> RunRecord:
    """Return a run with the id and the cluster of its job."""
    submission, accepted = run.submission, submissions.ACCEPTED
    if (submission.state, submission.job_id, run.cluster) == (accepted, str(job), cluster):
        return run
    try:
        return store.commit(run, job, cluster)
    except OSError:  # a query must work on a full disk and in another user's folder
        newest = replace(submission, state=accepted, job_id=str(job))
        return replace(run, submissions=(*run.submissions[:-1], newest))


def _is_settled(record: RunRecord, answered: bool, now: float, *, was_sent: bool) -> bool:
    """Return whether a submission will not become a job any more; a command of another host may live."""
    host, pid, _ = record.submission.submitter
    is_here = host == os.uname().nodename
    if not was_sent and (is_here or not pid):
        return True
    patience = SETTLED_AFTER if is_here else SETTLED_ELSEWHERE
    return answered and now - record.submission.at > patience


def _known_state(store: Store, run: RunRecord, row: JobStatus | None, now: float) -> RunState | None:
    """Return the state of a run by its row of the queue, else by its own records; None if neither has one."""
    if run.job_id is None:  # its submission is in progress, or was cut off
        return _unsubmitted(run)
    if row is not None:
        return _with_end_recorded(store, run, _with_end(run, row))
    return _recorded(store, run, now)


def _recorded(store: Store, run: RunRecord, now: float) -> RunState | None:
    """Return how a run ended by its own records; None if they do not have that."""
    final = run.submission.final
    ended = end_of(run) if needs_query(run, now) else None
    if ended is not None and _is_news(ended, final):
        return _with_end_recorded(store, run, ended)
    return RunState(run, _from_final(run, final)) if final is not None else None


def _last_known(run: RunRecord, last: JobIndex, answer: Answer) -> RunState:
    """Return the last known state, as the query failed: a failed query changes no state."""
    job = last.own(run)
    if job is None or job.is_over:
        return RunState(run, unknown_status(run, "unknown: the scheduler is not responding"), answer.note)
    return RunState(run, _with_end(run, job), answer.note, answer.last_at)


def _is_unnamed(before: RunRecord, state: RunState, now: float) -> bool:
    """Return whether a job was cancelled a short time ago, by whom only accounting knows; ``before`` is its run."""
    job, submission = state.status, before.submission
    if not _lacks_canceller(job) or submission.cancel_asked:
        return False
    return submission.final is None or now - (job.ended or submission.at) < NAMED_WITHIN


def _lacks_canceller(job: JobStatus) -> bool:
    return job.state == "CANCELLED" and job.cancelled_by is None


def _with_canceller(store: Store, state: RunState, ended: JobStatus | None) -> RunState:
    """Return a cancelled run's state with who cancelled it, and record that, if accounting has it."""
    run, user = state.run, ended.cancelled_by if ended is not None else None
    if user is None or not _lacks_canceller(state.status):
        return state
    if run.submission.final is not None:
        run = _saved(store, run, final={**run.submission.final, "cancelled_by": user})
    return replace(state, record=run, status=replace(state.status, cancelled_by=user))


def _with_others(run: RunRecord, state: RunState, jobs: JobIndex) -> RunState:
    own = state.status.id.base
    copies = tuple(job for job in _live_ids(jobs.of(run)) if job.base != own)
    return replace(state, copies=copies, others=tuple(_live_ids(jobs.others(run))))


def _live_ids(jobs: Iterable[JobStatus]) -> list[JobId]:
    return [job.id for job in jobs if not job.is_over]


def _is_news(ended: JobStatus, final: Mapping[str, Any] | None) -> bool:
    """Return whether an end record says more than the end that was seen, which stays otherwise.

    It does if Slurm has started the job once more since, or if the ranks' end records came late: the job succeeded.
    """
    if final is None:
        return True
    seen, restarts = as_int(final.get("restarts")), ended.restarts or 0
    if seen is None or restarts > seen:
        return True
    return ended.outcome is Outcome.DONE and final.get("state") == "FAILED"


def _absent(store: Store, run: RunRecord, ended: JobStatus | None, past: Answer, now: float) -> RunState:
    """Return the state of a run that is not in the queue and has no end record; ``past`` is accounting's answer."""
    if ended is not None:
        return _with_end_recorded(store, run, ended)
    why = "" if run.mine else "the job left the queue"
    try:
        if claims.read(run.run_dir, run.submission.key) is not None:
            why = "the job left the queue without recording how it ended; a node or the controller may have failed"
    except OSError:
        why = "the job left the queue, and its records cannot be read"
    if why:
        return RunState(run, unknown_status(run, why), past.note)
    return _never_started(run, past, now)


def _never_started(run: RunRecord, past: Answer, now: float) -> RunState:
    """Return the state of a run whose job has not begun, and is not in the queue."""
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
    return RunState(run, replace(unknown_status(run, why), outcome=Outcome.LOST))


def _ended(run: RunRecord, accounted: Mapping[tuple[str, int | None], Sequence[JobStatus]]) -> JobStatus | None:
    """Return the last ended job that is the run's, by its token or, if renamed, its claim.

    ``accounted`` has accounting's rows by number and task; an open row is not life.
    """
    if run.job_id is None:
        return None
    rows = accounted.get((run.job_id.base, run.job_id.task), ())
    ended = [row for row in rows if row.is_over and _is_of(row, run)]
    return max(ended, key=lambda row: row.ended or 0, default=None)


def _is_of(job: JobStatus, run: RunRecord) -> bool:
    """Return whether a job with the run's id is the run's: the id may have been used before."""
    if not (run.mine or job.user == run.user):
        return False
    if token_part(job) == run.submission.token[:8]:
        return True
    # the claim is that of this job id
    was_here = run_record.claim_of(run) is not None
    return was_here and abs((job.submitted or 0) - run.submission.at) < _SAME_SUBMISSION


def _with_end(run: RunRecord, job: JobStatus) -> JobStatus:
    """Add what the queue does not show from the run's own records: the exit status and the restarts."""
    claim = run_record.claim_of(run)
    job = replace(job, restarts=claim.restart if claim else job.restarts)
    if job.outcome is Outcome.RUNNING:
        return job
    ended = end_of(run)
    if ended is None:
        return replace(job, outcome=outcome_of(job.state, job.exit_status))
    held_until, _ = load_hold(run)
    state = _state_at_end(job.state, ended, is_held=held_until > 0)
    return replace(job, state=state, exit_status=ended.exit_status, outcome=outcome_of(state, ended.exit_status))


def _state_at_end(queued: str, ended: JobStatus, *, is_held: bool) -> str:
    """Return how a job ended whose state in the queue and end record differ."""
    if is_held:  # it failed; what ended its hold does not count
        return ended.state
    if ended.exit_status == 0 and queued == "FAILED":  # the end record came late
        return "COMPLETED"
    if (queued, ended.state) == ("PREEMPTED", "COMPLETED"):  # an earlier start, requeued in its grace time (24.05 …)
        return "COMPLETED"
    return queued


def _with_end_recorded(store: Store, run: RunRecord, job: JobStatus) -> RunState:
    """Record the end of a run, or remove the recorded end of a run that was requeued; return the run's state."""
    final = run.submission.final
    if final is None and job.is_over:
        from clusterrun.state import failed_nodes  # `list` rarely needs it

        failed_nodes.note_end(store.state, run, job)
    if not job.is_final:
        return RunState(run if final is None else _saved(store, run, final=None), job)
    if final is not None and final.get("state") == job.state:
        return RunState(run, replace(job, cancelled_by=as_int(final.get("cancelled_by"))))
    metrics = progress.last_metrics(run)
    new = {name: getattr(job, name) for name in ("state", "source", *_KEPT_TEXTS, *_KEPT_NUMBERS)}
    return RunState(_saved(store, run, final={**new, "figures": metrics and metrics._asdict()}), job)


def _saved(store: Store, run: RunRecord, **changes: Any) -> RunRecord:
    """Return the run with these changes of its submission; as it was if they cannot be written."""
    try:
        return store.save_submission(run, replace(run.submission, **changes))
    except OSError:
        return run  # a query must work on a full disk and in another user's folder


def recorded_end(run: RunRecord) -> JobStatus | None:
    """Return how a run ended by what was recorded when its end was seen; None if that is not recorded."""
    final = run.submission.final
    return _from_final(run, final) if final is not None else None


def _from_final(run: RunRecord, final: Mapping[str, Any]) -> JobStatus:
    state = str(final.get("state", "UNKNOWN"))
    values: dict[str, Any] = {name: as_int(final.get(name)) for name in _KEPT_NUMBERS}
    values |= {name: str(final.get(name) or "") for name in _KEPT_TEXTS}
    return status_of(run, state=state, outcome=outcome_of(state, values["exit_status"]), **values)


def state_from_records(store: Store, run: RunRecord, why: str) -> RunState:
    """Return the state of a run from its own records alone; ``why`` says why its scheduler was not queried."""
    return _recorded(store, run, time.time()) or RunState(run, unknown_status(run, why), why)


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
