"""The submit protocol: one run becomes one job, whatever the controller does meanwhile.

A submission is written to disk before sbatch is called, and named by a token that the job's name carries. An
answer is one of four: accepted, refused, not delivered (asking again is safe), ambiguous. An ambiguous one is
never repeated before a look-up: a timed-out sbatch is a submitted job (110 of 110 seen). The claim in the
script makes a copy that slips through harmless.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from clusterrun.errors import Ambiguous, NotDelivered, Refused, SchedulerError
from clusterrun.job import JobId, JobStatus
from clusterrun.records import run_record
from clusterrun.records.ownership import Jobs, one_cluster
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.scheduler import Scheduler, Submission
from clusterrun.scheduler.local import processes

#: Seconds for which a request that was not delivered is sent again.
KEEP_SENDING = 90.0
#: Seconds for which a silent controller is asked what became of an ambiguous submission.
KEEP_LOOKING = 120.0
#: An absent job is believed absent after this many good answers over at least this many seconds (Slurm's default
#: MessageTimeout): an sbatch that was cut off may still be in the controller's queue.
EMPTY_ANSWERS, EMPTY_SECONDS = 3, 10.0
#: Seconds after which a submission that nobody is at, and that left no trace, was never delivered: twice as long as an
#: orphaned sbatch can live. Of one begun on another host we cannot tell whether somebody is at it: as long as the
#: whole protocol may take.
SETTLED_AFTER, SETTLED_ELSEWHERE = 60, 300


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as the protocol sees it: seconds of a clock that never goes back, a sleep, and a die for jitter."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random


def submit(
    store: Store, scheduler: Scheduler, record: RunRecord, submission: Submission, *,
    tell: Callable[[str], None], clock: Clock | None = None,
) -> RunRecord:  # fmt: skip
    """Send a staged run until it is a job or known not to be one; returns the record with its job id.

    ``tell`` gets a line where it takes longer. Raises Refused or NotDelivered, after which nothing of the run is
    left, or Ambiguous, after which it can be settled by ``submit --recover``.
    """
    try:
        return _send(store, scheduler, record, submission, tell, clock or Clock())
    except BaseException:
        # nobody is at it any more, even where this process lives on: let the next command, or this one, settle it
        with contextlib.suppress(OSError):
            store.save_submission(record, replace(record.submission, submitter=(os.uname().nodename, 0, 0)))
        raise


def _send(
    store: Store, scheduler: Scheduler, record: RunRecord, submission: Submission, tell: Callable[[str], None],
    clock: Clock,
) -> RunRecord:  # fmt: skip
    began, tries = clock.now(), 0
    while True:
        tries += 1
        try:
            return store.commit(record, scheduler.submit(submission), one_cluster(scheduler.cluster))
        except Refused:
            store.discard(record)
            raise
        except NotDelivered as error:
            wait = min(2.0**tries, 15.0) * (0.75 + clock.jitter() / 2)
            if clock.now() - began + wait > KEEP_SENDING:
                store.discard(record)
                raise NotDelivered(
                    "Slurm did not answer, so nothing was submitted", said=error.said, hint=error.hint
                ) from error
            tell(f"the controller does not answer; trying again in {wait:.0f} s")
            clock.sleep(wait)
        except Ambiguous as error:
            if error.wire:
                tell("the answer was cut off; looking whether the job was made")
            job = look_up(scheduler, record, clock, tell)
            if job is not None:
                return store.commit(record, job)
            if error.yes:  # sent again it might become two: a wrapper may hold it back
                raise Ambiguous(
                    f"sbatch said yes, but no job of run {record.run_id} is to be seen", said=error.said,
                    hint=f"settle it later: clusterrun submit --recover {record.run_id}",
                ) from error  # fmt: skip
            if not error.wire:
                store.discard(record)
                raise Refused("sbatch failed and made no job", said=error.said, hint="its words are above") from error
            if clock.now() - began > KEEP_SENDING + KEEP_LOOKING:
                store.discard(record)
                raise NotDelivered(
                    "Slurm kept cutting off the request; nothing was submitted", said=error.said, hint="try again later"
                ) from error
        except SchedulerError:
            store.discard(record)
            raise


def look_up(scheduler: Scheduler, record: RunRecord, clock: Clock, tell: Callable[[str], None]) -> JobId | None:
    """The job that an ambiguous submission became, or None once it is known that there is none.

    Asks the run's own claim first, then the scheduler; raises Ambiguous where the scheduler stays silent.
    """
    token, since = record.submission.token, record.submission.at
    began, first_empty, empties = clock.now(), None, 0
    while True:
        claim = run_record.claim_of(record)
        answer = scheduler.find(token, since, record.run_dir / "script.sh")
        job = adopt(scheduler, answer.jobs, claim.job if claim else None, tell)
        if job is not None:
            return job
        if answer.complete:
            empties += 1
            first_empty = clock.now() if first_empty is None else first_empty
            if empties >= EMPTY_ANSWERS and clock.now() - first_empty >= EMPTY_SECONDS:
                return None
        elif clock.now() - began > KEEP_LOOKING:
            raise Ambiguous(
                f"it is not known whether run {record.run_id} was submitted", said=answer.note,
                hint=f"settle it later: clusterrun submit --recover {record.run_id}",
            )  # fmt: skip
        clock.sleep(EMPTY_SECONDS / (EMPTY_ANSWERS - 1) if answer.complete else 5.0)


def adopt(
    scheduler: Scheduler, jobs: Sequence[JobStatus], claimed: str | None, tell: Callable[[str], None]
) -> JobId | None:  # fmt: skip
    """The one job of those that carry a token: the one that claimed it, else the oldest; waiting copies are cancelled.

    ``claimed`` is the job id in the run's claim, None before there is one.
    """
    alike = sorted(jobs, key=lambda job: int(job.id.raw.lstrip("L")))
    if claimed is not None:
        chosen = JobId.parse(claimed)
    elif alike:
        chosen = alike[0].id
    else:
        return None
    extra = [job.id for job in alike if job.id.base != chosen.base and job.state == "PENDING"]
    if extra:
        tell(f"submitted more than once: keeping job {chosen}, cancelling {', '.join(map(str, extra))}")
        with contextlib.suppress(SchedulerError):  # a courtesy: the claim makes a copy harmless
            scheduler.cancel(extra)
    return chosen


def heal(store: Store, record: RunRecord, jobs: Jobs, answered: bool, now: float) -> RunRecord:
    """Settle a submission whose submitter is gone, from an answer that the caller has at hand.

    The record comes back as a job's, as one that was never submitted, or as it was. One that was thought never
    submitted may still turn out to be a job.
    """
    submission = record.submission
    if submission.state == run_record.ACCEPTED or submitter_lives(submission.submitter):
        return record
    claim, job = run_record.claim_of(record), jobs.own(record)
    if claim is not None:
        return store.commit(record, JobId.parse(claim.job), claim.cluster)
    if job is not None:
        return store.commit(record, JobId(job.id.base))
    here = submission.submitter[0] == os.uname().nodename
    settled = now - submission.at > (SETTLED_AFTER if here else SETTLED_ELSEWHERE)
    if submission.state == run_record.SUBMITTING and answered and settled:
        return store.save_submission(record, replace(submission, state=run_record.NOT_SUBMITTED))
    return record


def submitter() -> tuple[str, int, int]:
    """This process as a record names it: host, pid, start time in clock ticks since boot."""
    me = processes.find_process(os.getpid())
    return os.uname().nodename, os.getpid(), me.start if me else 0


def submitter_lives(who: tuple[str, int, int]) -> bool:
    """Whether that process is still at it; one on another host is not counted on."""
    host, pid, start = who
    return host == os.uname().nodename and start != 0 and processes.is_alive(pid, start)
