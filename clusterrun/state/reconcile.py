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
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.decode import as_int
from clusterrun.base.job import JobId, JobStatus, Outcome, one_cluster, outcome_of, split_tasks, token_part
from clusterrun.base.units import format_duration
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
    def subject(self) -> RunRecord | JobStatus:
        """What names the job, its user, its cluster and its submission: the run's record, else what Slurm shows."""
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
        """When the job was submitted, in epoch seconds; None if unknown."""
        return self.subject.at

    @property
    def scheduler(self) -> str:
        return self.record.scheduler if self.record is not None else "slurm"

    @property
    def run_dir(self) -> Path | None:
        return self.record.run_dir if self.record is not None else None

    @property
    def figures(self) -> progress.Metrics | None:
        """The last metrics of a run's training; after its end, those that were recorded with it."""
        if self.record is None:
            return None
        recorded = (self.record.submission.final or {}).get("figures", ())
        return progress.last_metrics(self.record) if recorded == () else progress.as_metrics(recorded)

    def belongs_to(self, user: str) -> bool:
        """Return whether it is this user's; a job whose user is unknown may be."""
        return self.record.mine if self.record is not None else self.status.user in ("", user)

    @property
    def is_unsubmitted(self) -> bool:
        """Whether it is a run that has no job id: its submission is in progress, or was cut off."""
        return self.record is not None and self.record.job_id is None

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
    def is_part(self) -> bool:
        """Whether an array's task (``5_2``) or a component (``5+1``) was named."""
        return self.job is not None and (self.job.task, self.job.part) != (None, None)

    def covers(self, state: RunState) -> bool:
        """Return whether a job is the named one, or a task of the named array."""
        if self.run is not None:
            return state.record is not None and state.record.submission.key == self.key
        return self.job is not None and self.job.includes(state.status.id)


def external_ids(targets: Sequence[Target]) -> list[JobId]:
    """Return the ids of the jobs without a record."""
    return [target.job for target in targets if target.run is None and target.job is not None]


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

    def _repr_html_(self) -> str:
        return _as_html(self.states)


def _as_html(states: Sequence[RunState]) -> str:
    rows = [
        (str(state.status.id), state.name, state.status.state,
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
    states = _join(store, scheduler, mine, answer or _query(scheduler, mine, now), now)
    states |= _join(store, scheduler, theirs, _query_theirs(scheduler, theirs), now)
    return [states[run.submission.key] for run in runs]


def _query(scheduler: Scheduler, runs: Sequence[RunRecord], now: float) -> Answer:
    """Return the queue. Of local jobs, which are never forgotten, it has those since the oldest job of these runs."""
    runs = [run for run in runs if needs_query(run, now)]
    if not runs:
        return Answer(complete=False)
    if scheduler.local is None or any(run.job_id is None for run in runs):
        return scheduler.query()
    jobs = [JobId.parse(one.job_id) for run in runs for one in run.submissions if one.job_id]
    return scheduler.local.query_since(min(jobs, key=lambda job: job.number))


def _query_theirs(scheduler: Scheduler, runs: Sequence[RunRecord]) -> Answer:
    """Return the jobs of other users' runs: a query without ids shows the jobs of this user only."""
    ids = job_ids(runs)
    return scheduler.query(ids) if ids else Answer()


def _join(
    store: Store, scheduler: Scheduler, runs: Sequence[RunRecord], answer: Answer, now: float
) -> dict[str, RunState]:
    """Return the states of runs, by their submissions: by the queue's answer and their records, else by accounting."""
    jobs, last, cluster = JobIndex(answer.jobs), JobIndex(answer.last), one_cluster(scheduler.cluster)
    runs = [_identified(store, _settled(store, run, jobs, answer.complete, now), jobs, cluster) for run in runs]
    known = [_known_state(store, run, jobs.own(run), now) for run in runs]
    past, accounted = _account(scheduler, runs, known, now) if answer.complete else (Answer(), {})
    states = {}
    for run, state in zip(runs, known, strict=True):
        ended = _ended(run, accounted)
        if state is not None:
            joined = _with_canceller(store, state, ended)
        elif answer.complete:
            joined = _absent(store, run, ended, past, now)
        else:
            joined = _last_known(run, last, answer)
        states[run.submission.key] = _with_others(run, joined, jobs)
    return states


def _account(
    scheduler: Scheduler, runs: Sequence[RunRecord], known: Sequence[RunState | None], now: float
) -> tuple[Answer, dict[tuple[str, int | None], list[JobStatus]]]:
    """Query accounting about runs of unknown state, and who cancelled others; return also its rows by number and task.

    ``known`` has the state of each run, None if it left the queue without an end record.
    """
    asked = [run for run, state in zip(runs, known, strict=True) if state is None or _is_unnamed(run, state, now)]
    if not asked:
        return Answer(), {}
    past = scheduler.account(job_ids(asked), min(run.submission.at for run in asked) - 3600)
    rows: dict[tuple[str, int | None], list[JobStatus]] = {}
    for job in chain.from_iterable(map(split_tasks, past.jobs)):
        rows.setdefault((job.id.base, job.id.task), []).append(job)
    return past, rows


def _settled(store: Store, run: RunRecord, jobs: JobIndex, answered: bool, now: float) -> RunRecord:
    """Return the run with what became of a submission whose submitter is gone."""
    if run.submission.state == submissions.ACCEPTED:
        return run
    try:
        return settle_submission(store, run, jobs, answered, now)
    except OSError:  # a query must work on a full disk and in another user's folder
        return run


def settle_submission(store: Store, record: RunRecord, jobs: JobIndex, answered: bool, now: float) -> RunRecord:
    """Update a submission whose submitter is gone, from a scheduler answer, and return the record.

    The submission is recorded as accepted or as not submitted, or stays as it is. A task of a sweep whose file shows
    that its array was never sent is not submitted, without any answer. A submission recorded as not
    submitted may still be accepted later.
    """
    from clusterrun.records import sweeps  # most queries settle none
    from clusterrun.system.processes import submitter_is_alive

    submission = record.submission
    if submitter_is_alive(submission.submitter):
        return record
    claim, row = run_record.claim_of(record), jobs.own(record)
    number = sweeps.job_of(record) if submission.task is not None else ""  # None: it was never sent
    if claim is not None:
        return store.commit(record, submission.job(claim.job), claim.cluster)
    if found := row.id.base if row is not None else number:
        return store.commit(record, submission.job(found))
    if submission.state == submissions.SUBMITTING and _is_settled(record, answered, now, was_sent=number is not None):
        return store.save_submission(record, replace(submission, state=submissions.NOT_SUBMITTED))
    return record


def _is_settled(record: RunRecord, answered: bool, now: float, *, was_sent: bool) -> bool:
    """Return whether a submission will not become a job any more; a command of another host may live."""
    host, pid, _ = record.submission.submitter
    here = host == os.uname().nodename
    if not was_sent and (here or not pid):
        return True
    return answered and now - record.submission.at > (SETTLED_AFTER if here else SETTLED_ELSEWHERE)


def _identified(store: Store, run: RunRecord, jobs: JobIndex, cluster: str) -> RunRecord:
    """Return the run with the job id and the cluster that its claim shows, else the queue.

    If it was submitted twice, the claim is that of the job that runs. A recorded id may be a banner's; the token that
    the queue shows is right.
    """
    row = jobs.own(run)
    if run.job_id is None or (row is None and run.submission.final is not None):
        return run
    number, where = run.job_id.base, run.cluster
    if claim := run_record.claim_of(run):
        number, where = claim.job, claim.cluster or where
    elif row is not None:
        number, where = row.id.base, where or cluster
    if (number, where) == (run.job_id.base, run.cluster):
        return run
    job = run.submission.job(number)
    try:
        return store.commit(run, job, where)
    except OSError:  # a query must work on a full disk and in another user's folder
        return replace(run, submissions=(*run.submissions[:-1], replace(run.submission, job_id=str(job))))


def _known_state(store: Store, run: RunRecord, row: JobStatus | None, now: float) -> RunState | None:
    """Return the state of a run by its row of the queue, else by its own records; None if neither has one."""
    if run.job_id is None:  # its submission is in progress, or was cut off
        return _unsubmitted(run)
    if row is not None:
        return _with_end_recorded(store, run, _with_end(run, row))
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


def _with_canceller(store: Store, state: RunState, ended: Sequence[JobStatus]) -> RunState:
    """Return a cancelled run's state with who cancelled it, and record that, if accounting has it."""
    run, job = state.record, state.status
    named = [row for row in ended if row.cancelled_by is not None]
    assert run is not None
    if not named or not _lacks_canceller(job):
        return state
    user = max(named, key=lambda row: row.ended or 0).cancelled_by
    if run.submission.final is not None:
        run = _saved(store, run, {**run.submission.final, "cancelled_by": user})
    return replace(state, record=run, status=replace(job, cancelled_by=user))


def _with_others(run: RunRecord, state: RunState, jobs: JobIndex) -> RunState:
    copies = [job.id for job in jobs.of(run) if not job.is_over and job.id.base != state.status.id.base]
    others = [job.id for job in jobs.others(run) if not job.is_over]
    return replace(state, copies=tuple(copies), others=tuple(others))


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


def _absent(store: Store, run: RunRecord, ended: Sequence[JobStatus], past: Answer, now: float) -> RunState:
    """Return the state of a run that is not in the queue and has no end record; ``past`` is accounting's answer."""
    if ended:
        return _with_end_recorded(store, run, max(ended, key=lambda row: row.ended or 0))
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
    return RunState(run, replace(unknown_status(run, why), outcome=Outcome.LOST), past.note)


def _ended(run: RunRecord, accounted: Mapping[tuple[str, int | None], Sequence[JobStatus]]) -> list[JobStatus]:
    """Return the ended jobs that are the run's, by its token or, if renamed, its claim.

    ``accounted`` has accounting's rows by number and task; an open row is not life.
    """
    if run.job_id is None:
        return []
    rows = accounted.get((run.job_id.base, run.job_id.task), ())
    return [row for row in rows if row.is_over and _is_of(row, run)]


def _is_of(job: JobStatus, run: RunRecord) -> bool:
    """Return whether a job with the run's id is the run's: the id may have been used before."""
    if not (run.mine or job.user == run.user):
        return False
    if token_part(job) == run.submission.token[:8]:
        return True
    claim = run_record.claim_of(run)
    if claim is None or claim.job != job.id.base or job.submitted is None:
        return False
    return abs(job.submitted - run.submission.at) < _SAME_SUBMISSION


def _with_end(run: RunRecord, job: JobStatus) -> JobStatus:
    """Add what the queue does not show from the run's own records: the exit status and the restarts."""
    claim = run_record.claim_of(run)
    job = replace(job, restarts=claim.restart if claim else job.restarts)
    if job.outcome is Outcome.RUNNING:
        return job
    ended = end_of(run)
    if ended is None:
        return replace(job, outcome=outcome_of(job.state, job.exit_status))
    state = _state_at_end(job.state, ended, is_held=load_hold(run) is not None)
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
    known, new = run.submission.final or {}, job.state if job.is_final else None
    if known.get("state") == new:
        by = as_int(known.get("cancelled_by"))
        return RunState(run, job if by is None else replace(job, cancelled_by=by))
    if new is None:
        return RunState(_saved(store, run, None), job)
    metrics = progress.last_metrics(run)
    final = {name: getattr(job, name) for name in ("state", "source", *_KEPT_TEXTS, *_KEPT_NUMBERS)}
    return RunState(_saved(store, run, {**final, "figures": metrics and metrics._asdict()}), job)


def _saved(store: Store, run: RunRecord, final: Mapping[str, Any] | None) -> RunRecord:
    """Return the run with another recorded end; as it was if that cannot be written."""
    try:
        return store.save_submission(run, replace(run.submission, final=final))
    except OSError:
        return run  # a query must work on a full disk and in another user's folder


def _from_final(run: RunRecord, final: Mapping[str, Any]) -> JobStatus:
    state = str(final.get("state", "UNKNOWN"))
    values: dict[str, Any] = {name: as_int(final.get(name)) for name in _KEPT_NUMBERS}
    values |= {name: str(final.get(name) or "") for name in _KEPT_TEXTS}
    return status_of(run, state=state, outcome=outcome_of(state, values["exit_status"]), **values)


def state_from_records(store: Store, run: RunRecord, why: str) -> RunState:
    """Return the state of a run from its own records alone; ``why`` says why its scheduler was not queried."""
    if run.submission.final is not None:
        return RunState(run, _from_final(run, run.submission.final))
    ended = end_of(run)
    if ended is not None:
        return _with_end_recorded(store, run, ended)
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
