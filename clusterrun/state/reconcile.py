"""How jobs stand: what the scheduler says, what accounting says, and what the runs themselves wrote, joined.

One question to the scheduler for all jobs, one to accounting for those that have left and wrote no end. Nothing is
guessed: a job that nobody knows is UNKNOWN, and the reason says what was asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from clusterrun.errors import SchedulerError
from clusterrun.job import JobId, JobStatus, Outcome, outcome_of
from clusterrun.records import progress, run_record
from clusterrun.records.end_records import as_int, end_of
from clusterrun.records.ownership import JobIndex, one_cluster, token_part
from clusterrun.records.run_record import Claim, RunRecord
from clusterrun.records.store import Store
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.submit.protocol import settle_submission, submitter_is_alive

#: Seconds after the end for which a finished job is still asked for: within it Slurm may know it, and a requeue may
#: bring it back (MinJobAge is 300 s by default; sites set minutes to hours).
ASK_AGAIN = 86_400
#: Seconds after submission before accounting is believed: rows were seen to come up to 5 s late.
ACCOUNTING_LAG = 15
#: Seconds between our record of a submission and Slurm's, by which an id given out twice is told apart.
_SAME_SUBMISSION = 300


@dataclass(frozen=True, slots=True)
class RunState:
    """A job and how it stands; ``record`` is None for a job that is not ours, ``note`` says what could not be asked.

    ``as_of`` is None for a state of this moment, and the epoch second it was last seen where nobody could be asked now.
    ``copies`` are other jobs of the same submission that wait or run.
    """

    record: RunRecord | None
    status: JobStatus
    note: str = ""
    as_of: int | None = None
    copies: tuple[JobId, ...] = ()

    @property
    def is_old(self) -> bool:
        """Whether Slurm did not tell of the job now, though it may know it."""
        return self.as_of is not None or (self.record is None and bool(self.note))

    @property
    def told(self) -> tuple[str, ...]:
        """What makes a change where another answer has it otherwise: not the time, which always does."""
        job = self.status
        return str(job.id), job.tasks, job.state, job.reason, job.nodes, str(job.restarts), "old" * self.is_old

    def aged(self, seconds: float) -> RunState:
        """The state so many seconds after it was told: the time of a job that runs has gone on."""
        job = self.status
        if job.state != "RUNNING" or job.elapsed is None or self.is_old:
            return self
        return replace(self, status=replace(job, elapsed=job.elapsed + int(seconds)))


def read(
    store: Store, scheduler: Scheduler, runs: Sequence[RunRecord], *, now: float | None = None,
    answer: Answer | None = None,
) -> list[RunState]:  # fmt: skip
    """The state of runs of one scheduler, in their order; at most one query and one look into accounting.

    ``answer`` is that to a query of this moment, where the caller has one at hand. Half-written submissions are healed
    and seen ends written down on the way.
    """
    now = time.time() if now is None else now
    mine, theirs = [run for run in runs if run.mine], [run for run in runs if not run.mine]
    if answer is None or not mine:
        ask = any(worth_asking(run, now) for run in mine)
        answer = scheduler.query() if ask else Answer(complete=False)
    found = _read(store, scheduler, mine, answer, now)
    if theirs:  # a query without ids shows the jobs of this user only
        ids = [run.job_id for run in theirs if run.job_id is not None]
        found += _read(store, scheduler, theirs, scheduler.query(ids) if ids else Answer(), now)
    by_run = {state.record.run_dir: state for state in found if state.record is not None}
    return [by_run[run.run_dir] for run in runs]


def _read(store: Store, scheduler: Scheduler, runs: Sequence[RunRecord], answer: Answer, now: float) -> list[RunState]:
    jobs, last, cluster = JobIndex(answer.jobs), JobIndex(answer.last), one_cluster(scheduler.cluster)
    runs = [_claimed(store, _healed(store, run, jobs, answer.complete, now), jobs, cluster) for run in runs]
    absent = [run for run in runs if answer.complete and _needs_accounting(run, jobs)]
    past = Answer()
    if absent:
        ids = [run.job_id for run in absent if run.job_id is not None]
        past = scheduler.account(ids, min(run.submission.at for run in absent) - 3600)
    found = [_with_copies(_state(store, run, jobs, answer, past, now), jobs) for run in runs]
    return found if answer.complete else [_last_known(state, last, answer) for state in found]


def _with_copies(state: RunState, jobs: JobIndex) -> RunState:
    assert state.record is not None
    alive = [job.id for job in jobs.of(state.record) if not job.is_over and job.id.base != state.status.id.base]
    return replace(state, copies=tuple(alive)) if alive else state


def _last_known(state: RunState, last: JobIndex, answer: Answer) -> RunState:
    """A failed question changes no state: of a run that nobody told of now, the state it was last seen in."""
    run = state.record
    if run is None or run.job_id is None or state.status.outcome is not Outcome.UNKNOWN:
        return state
    job = last.own(run)
    if job is None or job.is_over:
        return state
    return RunState(run, _with_end(run, job), answer.note, answer.last_at)


def _state(store: Store, run: RunRecord, jobs: JobIndex, answer: Answer, past: Answer, now: float) -> RunState:
    submission = run.submission
    if run.job_id is None:  # being submitted this moment by somebody alive, who will write it down; or cut off
        return _unsubmitted(run)
    job = jobs.own(run)
    if job is not None:
        if job.id.base != run.job_id.base:  # the recorded id was a banner's: the token knows better
            run = _moved(store, run, JobId(job.id.base))
        job = _with_end(run, job)
        return RunState(_seen(store, run, job), job)
    ended = end_of(run) if submission.final is None or worth_asking(run, now) else None
    if ended is not None:
        return RunState(_seen(store, run, ended), ended)
    if submission.final is not None:
        return RunState(run, _from_final(run, submission.final))
    if not answer.complete:
        return RunState(run, _unknown(run, "not known: the scheduler did not answer"), answer.note)
    return _absent(store, run, past, now)


def _absent(store: Store, run: RunRecord, past: Answer, now: float) -> RunState:  # noqa: PLR0911 - a case a line
    """A job that an answering scheduler does not hold and that wrote no end."""
    assert run.job_id is not None
    try:
        claim, readable = run_record.read_claim(run), True
    except OSError:
        claim, readable = None, False
    closed = [job for job in past.jobs if job.is_over and _is_accounted(job, run, claim)]
    if closed:
        job = max(closed, key=lambda j: j.ended or 0)
        return RunState(_seen(store, run, job), job)
    if claim is not None:
        why = "it ran, then left the queue without an end record (a node or the controller was lost?)"
        return RunState(run, _unknown(run, why), past.note)
    if not readable or not run.mine:
        why = "it left the queue, and its records cannot be read" if not readable else "it left the queue"
        return RunState(run, _unknown(run, why), past.note)
    if not run.cluster:
        return RunState(run, _unknown(run, "it is not in the queue, and the cluster that took it is not known"))
    if run.submission.cancel_asked:
        job = _unknown(run, "cancelled while it waited")
        return RunState(run, replace(job, state="CANCELLED", outcome=Outcome.CANCELLED, source="record"))
    if now - run.submission.at < ACCOUNTING_LAG:
        return RunState(run, _unknown(run, "just submitted; not seen in the queue yet"))
    if not past.complete:
        return RunState(run, _unknown(run, "it is not in the queue, and accounting does not answer"), past.note)
    why = "Slurm took it and no longer knows it; it never started (a controller crash, or cancelled while it waited)"
    return RunState(run, replace(_unknown(run, why), outcome=Outcome.LOST), past.note)


def _is_accounted(job: JobStatus, run: RunRecord, claim: Claim | None) -> bool:
    """Whether a row of accounting is the run's: by its token or, renamed, as the job that wrote the claim."""
    if run.job_id is None or job.id.base != run.job_id.base or not (run.mine or job.user == run.user):
        return False
    if token_part(job) == run.submission.token[:8]:
        return True
    return claim is not None and claim.job == job.id.base and job.submitted is not None and (
        abs(job.submitted - run.submission.at) < _SAME_SUBMISSION
    )  # fmt: skip


def _with_end(run: RunRecord, job: JobStatus) -> JobStatus:
    """What the queue does not tell: the exit status and the restarts, from the run's own files."""
    claim = run_record.claim_of(run)
    restarts = claim.restart if claim else job.restarts
    if job.outcome is Outcome.RUNNING:
        return replace(job, restarts=restarts)
    ended = end_of(run)
    status = ended.exit_status if ended else job.exit_status
    state = "COMPLETED" if status == 0 and ended and job.state == "FAILED" else job.state  # marks that came late
    return replace(job, state=state, restarts=restarts, exit_status=status, outcome=outcome_of(state, status))


def _seen(store: Store, run: RunRecord, job: JobStatus) -> RunRecord:
    """Write a seen end down, or strike out one that a requeue has undone."""
    known = run.submission.final
    if (known and known.get("state")) == (job.state if job.is_final else None):
        return run
    new: dict[str, Any] | None = None
    if job.is_final:
        new = {
            "state": job.state, "reason": job.reason, "exit_status": job.exit_status, "ended": job.ended,
            "nodes": job.nodes, "elapsed": job.elapsed, "restarts": job.restarts, "source": job.source,
            "started": job.started, "time_limit": job.time_limit, "figures": _figures_json(progress.last_metrics(run)),
        }  # fmt: skip
    try:
        return store.save_submission(run, replace(run.submission, final=new))
    except OSError:
        return run  # reading must work on a full disk and in another's folder


def _from_final(run: RunRecord, final: Mapping[str, Any]) -> JobStatus:
    state, status = str(final.get("state", "UNKNOWN")), as_int(final.get("exit_status"), None)
    base = _unknown(run, str(final.get("reason") or ""))
    return replace(
        base,
        state=state,
        outcome=outcome_of(state, status),
        exit_status=status,
        ended=as_int(final.get("ended"), None),
        elapsed=as_int(final.get("elapsed"), None),
        restarts=as_int(final.get("restarts"), None),
        started=as_int(final.get("started"), None),
        time_limit=as_int(final.get("time_limit"), None),
        nodes=str(final.get("nodes") or ""),
        source="record",
    )


def figures(run: RunRecord) -> progress.Metrics | None:
    """The last figures of a run's training; of one whose end was seen, those it had then."""
    kept = (run.submission.final or {}).get("figures", ())
    return progress.last_metrics(run) if kept == () else progress.as_metrics(kept)


def _figures_json(metrics: progress.Metrics | None) -> dict[str, Any] | None:
    return asdict(metrics) if metrics is not None else None


def offline(store: Store, run: RunRecord, why: str) -> RunState:
    """A run whose scheduler cannot be asked from here, by what its own files tell, or what was seen before."""
    if run.submission.final is not None:
        return RunState(run, _from_final(run, run.submission.final))
    ended = end_of(run)
    return RunState(_seen(store, run, ended), ended) if ended is not None else RunState(run, _unknown(run, why), why)


def _unsubmitted(run: RunRecord) -> RunState:
    settle = f"clusterrun submit --recover {run.run_id}"
    if run.submission.state == run_record.NOT_SUBMITTED:
        why = f"never submitted: its submission was cut off. `{settle}` submits it now"
    elif submitter_is_alive(run.submission.submitter):
        why = "being submitted"
    else:
        why = f"not known whether it was submitted. `{settle}` settles it"
    return RunState(run, _unknown(run, why))


def _unknown(run: RunRecord, reason: str) -> JobStatus:
    return JobStatus(
        id=run.job_id or JobId("0"),
        state="UNKNOWN",
        outcome=Outcome.UNKNOWN,
        reason=reason,
        name=f"{run.name}.{run.submission.token[:8]}",
        user=run.user,
        node_count=run.nodes,
        submitted=run.submission.at,
        source="record",
    )


def worth_asking(run: RunRecord, now: float) -> bool:
    """Whether the scheduler may know more of a run than its own files."""
    final = run.submission.final
    return final is None or now - (as_int(final.get("ended"), None) or run.submission.at) < ASK_AGAIN


def _needs_accounting(run: RunRecord, jobs: JobIndex) -> bool:
    if run.job_id is None or run.submission.final is not None:
        return False
    return jobs.own(run) is None and end_of(run) is None


def _healed(store: Store, run: RunRecord, jobs: JobIndex, answered: bool, now: float) -> RunRecord:
    try:
        return settle_submission(store, run, jobs, answered, now)
    except OSError:  # reading must work on a full disk and in another's folder
        return run


def _claimed(store: Store, run: RunRecord, jobs: JobIndex, cluster: str) -> RunRecord:
    """The run with what its claim knows: the job that it is, if it was submitted twice, and the cluster it went to."""
    claim = run_record.claim_of(run)
    if claim is not None and run.job_id is not None and (
        claim.job != run.job_id.base or (claim.cluster and claim.cluster != run.cluster)
    ):  # fmt: skip
        return _moved(store, run, JobId(claim.job), claim.cluster)
    if not run.cluster and cluster and run.job_id is not None and jobs.own(run) is not None:
        return _moved(store, run, run.job_id, cluster)
    return run


def _moved(store: Store, run: RunRecord, job: JobId, cluster: str = "") -> RunRecord:
    try:
        return store.commit(run, job, cluster)
    except OSError:  # reading must work on a full disk and in another's folder
        return replace(run, submissions=(*run.submissions[:-1], replace(run.submission, job_id=str(job))))


def cancelled(store: Store, run: RunRecord, now: float) -> RunRecord:
    """Write down that our own cancel was accepted: the only trace of a job cancelled while it waits."""
    try:
        return store.save_submission(run, replace(run.submission, cancel_asked=int(now)))
    except OSError as error:
        raise SchedulerError(f"the record of {run.run_id} cannot be written: {error.strerror}") from error
