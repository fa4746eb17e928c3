"""How jobs stand: what the scheduler says, what accounting says, and what the runs themselves wrote, joined.

One question to the scheduler for all jobs, one to accounting for those that have left and wrote no end. Nothing is
guessed: a job that nobody knows is UNKNOWN, and the reason says what was asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from clusterrun import progress
from clusterrun import store as records
from clusterrun.errors import SchedulerError
from clusterrun.job import JobId, JobStatus, Outcome, outcome_of
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.store import RunRecord, Store
from clusterrun.submission import heal, own_job, submitter_lives

#: Seconds after the end for which a finished job is still asked for: within it Slurm may know it, and a requeue may
#: bring it back (MinJobAge is 300 s by default; sites set minutes to hours).
ASK_AGAIN = 86_400
#: Seconds after submission before accounting is believed: rows were seen to come up to 5 s late.
ACCOUNTING_LAG = 15


@dataclass(frozen=True, slots=True)
class RunState:
    """A job and how it stands; ``record`` is None for a job that is not ours, ``note`` says what could not be asked.

    ``as_of`` is None for a state of this moment, and the epoch second it was last seen where nobody could be asked now.
    """

    record: RunRecord | None
    status: JobStatus
    note: str = ""
    as_of: int | None = None

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
    if answer is None:
        answer = scheduler.query() if any(worth_asking(run, now) for run in runs) else Answer(complete=False)
    by_token, last = _by_token(answer.jobs), _by_token(answer.last)
    runs = [_claimed(store, _healed(store, run, by_token, answer.complete, now)) for run in runs]
    absent = [run for run in runs if answer.complete and _needs_accounting(run, by_token)]
    past = Answer()
    if absent:
        ids = [run.job_id for run in absent if run.job_id is not None]
        past = scheduler.account(ids, min(run.submission.at for run in absent) - 3600)
    found = [_state(store, run, by_token, answer, past, now) for run in runs]
    return found if answer.complete else [_last_known(state, last, answer) for state in found]


def _last_known(state: RunState, last: Mapping[str, Sequence[JobStatus]], answer: Answer) -> RunState:
    """A failed question changes no state: of a run that nobody told of now, the state it was last seen in."""
    run = state.record
    if run is None or run.job_id is None or state.status.outcome is not Outcome.UNKNOWN:
        return state
    job = own_job(run, last.get(run.submission.token[:8], ()))
    if job is None or job.is_over:
        return state
    return RunState(run, _with_end(run, job), answer.note, answer.last_at)


def _state(
    store: Store, run: RunRecord, by_token: Mapping[str, Sequence[JobStatus]], answer: Answer, past: Answer, now: float
) -> RunState:
    submission = run.submission
    if run.job_id is None:  # being submitted this moment by somebody alive, who will write it down; or cut off
        return _unsubmitted(run)
    job = own_job(run, by_token.get(submission.token[:8], ()))
    if job is not None:
        if job.id.base != run.job_id.base:  # the recorded id was a banner's: the token knows better
            run = _moved(store, run, JobId(job.id.base))
        return RunState(_seen(store, run, job), _with_end(run, job))
    ended = end_of(run) if submission.final is None or worth_asking(run, now) else None
    if ended is not None:
        return RunState(_seen(store, run, ended), ended)
    if submission.final is not None:
        return RunState(run, _from_final(run, submission.final))
    if not answer.complete:
        return RunState(run, _unknown(run, "not known: the scheduler did not answer"), answer.note)
    return _absent(store, run, past, now)


def _absent(store: Store, run: RunRecord, past: Answer, now: float) -> RunState:
    """A job that an answering scheduler does not hold and that wrote no end."""
    assert run.job_id is not None
    mine = [j for j in past.jobs if j.id.base == run.job_id.base and token_part(j) == run.submission.token[:8]]
    closed = [job for job in mine if job.is_over]
    if closed:
        job = max(closed, key=lambda j: j.ended or 0)
        return RunState(_seen(store, run, job), job)
    claim = records.claim_of(run)
    if claim is not None:
        why = "it ran, then left the queue without an end record (a node or the controller was lost?)"
        return RunState(run, _unknown(run, why), past.note)
    if run.submission.cancel_asked:
        job = _unknown(run, "cancelled while it waited")
        return RunState(run, replace(job, state="CANCELLED", outcome=Outcome.CANCELLED, source="record"))
    if now - run.submission.at < ACCOUNTING_LAG:
        return RunState(run, _unknown(run, "just submitted; not seen in the queue yet"))
    if not past.complete:
        return RunState(run, _unknown(run, "it is not in the queue, and accounting does not answer"), past.note)
    why = "Slurm took it and no longer knows it; it never started (a controller crash, or cancelled while it waited)"
    return RunState(run, replace(_unknown(run, why), outcome=Outcome.LOST), past.note)


def end_of(run: RunRecord) -> JobStatus | None:
    """How a run's newest attempt says it ended, None where it has not, or will start again."""
    folders = records.attempts(run)
    end = records.read_json(folders[-1] / "end.json") if folders else None
    if end is None or run.job_id is None:
        return None
    claim = records.claim_of(run)
    if claim is not None and claim[2] > _int(end.get("restart"), 0):
        return None  # it was started again and has not got as far as its own folder
    due, status = str(end.get("due", "")), _int(end.get("status"), 1)
    if due in ("JOB REQUEUE", "PREEMPTION", "NODE FAILURE"):
        return None
    state, reason = _word(status, bool(end.get("signal")), due, str(end.get("reason", "")))
    started = records.read_json(folders[-1] / "start.json") or {}
    ranks = started["ranks"] if isinstance(started.get("ranks"), list) else []
    last = _int(end.get("time"), None)
    first = _began(run, _int(started.get("time"), None))
    return JobStatus(
        id=run.job_id,
        state=state,
        outcome=outcome_of(state, status),
        reason=reason,
        name=f"{run.name}.{run.submission.token[:8]}",
        user=run.user,
        node_count=run.nodes,
        nodes=",".join(dict.fromkeys(str(r.get("node", "")) for r in ranks if isinstance(r, dict))),
        elapsed=last - first if first is not None and last is not None else None,
        submitted=run.submission.at,
        started=first,
        ended=last,
        exit_status=status,
        restarts=_int(end.get("restart"), None),
        source="record",
    )


def _began(run: RunRecord, joined: int | None) -> int | None:
    """When the newest start of a run began: its first act writes the claim; its ranks have ``joined`` later."""
    try:
        claimed = int((run.run_dir / "claims" / run.submission.token / "owner").stat().st_mtime)
    except OSError:
        return joined
    return claimed if joined is None or claimed < joined else joined


def _word(status: int, signalled: bool, due: str, reason: str) -> tuple[str, str]:
    """Slurm's state word for an end record, and the reason."""
    if status == 0:
        return "COMPLETED", ""
    if signalled and (due == "TIME LIMIT" or reason == "TimeLimit"):
        return "TIMEOUT", "TimeLimit"
    if signalled:
        return "CANCELLED", ""
    return "FAILED", "NonZeroExitCode"


def _with_end(run: RunRecord, job: JobStatus) -> JobStatus:
    """What the queue does not tell: the exit status and the restarts, from the run's own files."""
    claim = records.claim_of(run)
    restarts = claim[2] if claim else job.restarts
    if job.outcome is Outcome.RUNNING:
        return replace(job, restarts=restarts)
    ended = end_of(run)
    status = ended.exit_status if ended else job.exit_status
    return replace(job, restarts=restarts, exit_status=status, outcome=outcome_of(job.state, status))


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
    state, status = str(final.get("state", "UNKNOWN")), _int(final.get("exit_status"), None)
    base = _unknown(run, str(final.get("reason") or ""))
    return replace(
        base,
        state=state,
        outcome=outcome_of(state, status),
        exit_status=status,
        ended=_int(final.get("ended"), None),
        elapsed=_int(final.get("elapsed"), None),
        restarts=_int(final.get("restarts"), None),
        started=_int(final.get("started"), None),
        time_limit=_int(final.get("time_limit"), None),
        nodes=str(final.get("nodes") or ""),
        source="record",
    )


def figures(run: RunRecord) -> progress.Metrics | None:
    """The last figures of a run's training; of one whose end was seen, those it had then."""
    kept = (run.submission.final or {}).get("figures", ())
    return progress.last_metrics(run) if kept == () else progress.as_metrics(kept)


def _figures_json(metrics: progress.Metrics | None) -> dict[str, Any] | None:
    return asdict(metrics) if metrics is not None else None


def offline(run: RunRecord, why: str) -> RunState:
    """A run whose scheduler cannot be asked from here, by what its own files tell, or what was seen before."""
    if run.submission.final is not None:
        return RunState(run, _from_final(run, run.submission.final))
    ended = end_of(run)
    return RunState(run, ended) if ended is not None else RunState(run, _unknown(run, why), why)


def _unsubmitted(run: RunRecord) -> RunState:
    settle = f"clusterrun submit --recover {run.run_id}"
    if run.submission.state == records.NOT_SUBMITTED:
        why = f"never submitted: its submission was cut off. `{settle}` submits it now"
    elif submitter_lives(run.submission.submitter):
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
    return final is None or now - (_int(final.get("ended"), None) or run.submission.at) < ASK_AGAIN


def _needs_accounting(run: RunRecord, by_token: Mapping[str, Sequence[JobStatus]]) -> bool:
    if run.job_id is None or run.submission.final is not None:
        return False
    return own_job(run, by_token.get(run.submission.token[:8], ())) is None and end_of(run) is None


def _healed(
    store: Store, run: RunRecord, by_token: Mapping[str, Sequence[JobStatus]], answered: bool, now: float
) -> RunRecord:
    try:
        return heal(store, run, by_token, answered, now)
    except OSError:  # reading must work on a full disk and in another's folder
        return run


def _claimed(store: Store, run: RunRecord) -> RunRecord:
    """A run that was submitted twice is the job that claimed it, whichever was written down."""
    claim = records.claim_of(run)
    if claim is None or run.job_id is None or claim[1] == run.job_id.base:
        return run
    return _moved(store, run, JobId(claim[1]))


def _moved(store: Store, run: RunRecord, job: JobId) -> RunRecord:
    try:
        return store.commit(run, job)
    except OSError:  # reading must work on a full disk and in another's folder
        return replace(run, submissions=(*run.submissions[:-1], replace(run.submission, job_id=str(job))))


def _by_token(jobs: Sequence[JobStatus]) -> dict[str, list[JobStatus]]:
    found: dict[str, list[JobStatus]] = {}
    for job in jobs:
        found.setdefault(token_part(job), []).append(job)
    return found


def token_part(job: JobStatus) -> str:
    """The end of a job's name: of one of ours, the first eight letters of its token."""
    return job.name.rpartition(".")[2]


def _int(value: object, default: int | None) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
        return default
    return int(value)


def cancelled(store: Store, run: RunRecord, now: float) -> RunRecord:
    """Write down that our own cancel was accepted: the only trace of a job cancelled while it waits."""
    try:
        return store.save_submission(run, replace(run.submission, cancel_asked=int(now)))
    except OSError as error:
        raise SchedulerError(f"the record of {run.run_id} cannot be written: {error.strerror}") from error
