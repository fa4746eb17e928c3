"""The submission protocol: one run becomes exactly one job, even if the controller fails meanwhile.

A submission is written to disk before sbatch is called. It has a token, which is part of the job's name. The result is
one of four: accepted, refused, not delivered (a retry is safe), or ambiguous. After an ambiguous result the job is
looked up first: a timed-out sbatch usually did submit the job (110 of 110 observed). If a second job is created
nevertheless, the claim in the script makes it harmless.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from clusterrun.errors import Ambiguous, NotDelivered, Refused, SchedulerError
from clusterrun.job import JobId, JobStatus
from clusterrun.records import claims, run_record
from clusterrun.records.ownership import JobIndex, one_cluster
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.scheduler import Scheduler, Submission
from clusterrun.scheduler.local import processes

#: Seconds to retry a request that was not delivered.
KEEP_SENDING = 90.0
#: Seconds to query a silent controller about an ambiguous submission.
KEEP_QUERYING = 120.0
#: A job counts as absent after this many complete answers over at least this many seconds (Slurm's default
#: MessageTimeout): an interrupted sbatch may still be in the controller's queue.
EMPTY_ANSWERS, EMPTY_SECONDS = 3, 10.0
#: Seconds after which an abandoned submission without a job counts as never delivered: twice the lifetime of an
#: orphaned sbatch. On another host we cannot see the submitter, so we wait as long as the protocol may take.
SETTLED_AFTER, SETTLED_ELSEWHERE = 60, 300


class Clock(NamedTuple):
    """The protocol's time functions: a monotonic clock in seconds, a sleep, and a random number for jitter."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random


def submit(
    store: Store, scheduler: Scheduler, record: RunRecord, submission: Submission, *,
    notify: Callable[[str], None], clock: Clock | None = None,
) -> RunRecord:  # fmt: skip
    """Submit a staged run and return its record with the job id.

    ``notify`` gets a line if it takes longer. Raises Refused or NotDelivered, after deleting the run (or only this
    submission, if it is not the run's first), or Ambiguous, after which ``submit --recover`` can finish it.
    """
    try:
        return _send(store, scheduler, record, submission, notify, clock or Clock())
    except BaseException:
        # this process may live on, but no longer submits: the next command may finish it
        with contextlib.suppress(OSError):
            if store.is_staged(record):
                store.save_submission(record, replace(record.submission, submitter=(os.uname().nodename, 0, 0)))
        raise


def _send(
    store: Store, scheduler: Scheduler, record: RunRecord, submission: Submission, notify: Callable[[str], None],
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
                    "Slurm did not answer; nothing was submitted", detail=error.detail, hint=error.hint
                ) from error
            notify(f"Slurm is not responding; trying again in {wait:.0f} s")
            clock.sleep(wait)
        except Ambiguous as error:
            if error.cut_off:
                notify("lost the connection to Slurm; checking whether the job was created")
            job = find_job(scheduler, record, clock, notify)
            if job is not None:
                return store.commit(record, job)
            if error.accepted:  # a retry might create a second job: a wrapper may delay the first
                raise Ambiguous(
                    f"sbatch succeeded, but Slurm shows no job for run {record.run_id}", detail=error.detail,
                    hint=f"run `clusterrun submit --recover {record.run_id}` later",
                ) from error  # fmt: skip
            if not error.cut_off:
                store.discard(record)
                raise Refused(
                    "sbatch failed; no job was created", detail=error.detail, hint="see the output of sbatch"
                ) from error
            if clock.now() - began > KEEP_SENDING + KEEP_QUERYING:
                store.discard(record)
                raise NotDelivered(
                    "lost the connection to Slurm repeatedly; nothing was submitted", detail=error.detail,
                    hint="try again later",
                ) from error  # fmt: skip
        except SchedulerError:
            store.discard(record)
            raise


def find_job(scheduler: Scheduler, record: RunRecord, clock: Clock, notify: Callable[[str], None]) -> JobId | None:
    """Return the job of an ambiguous submission, or None once it is certain that there is none.

    Checks the run's claim and the scheduler. Raises Ambiguous if the scheduler does not answer.
    """
    token, since = record.submission.token, record.submission.at
    began, first_empty, empties = clock.now(), None, 0
    while True:
        claim = claims.claim_of(record)
        answer = scheduler.find(token, since, record.script)
        job = choose_job(scheduler, answer.jobs, claim.job if claim else None, notify)
        if job is not None:
            return job
        if answer.complete:
            empties += 1
            first_empty = clock.now() if first_empty is None else first_empty
            if empties >= EMPTY_ANSWERS and clock.now() - first_empty >= EMPTY_SECONDS:
                return None
        elif clock.now() - began > KEEP_QUERYING:
            raise Ambiguous(
                f"cannot tell whether run {record.run_id} was submitted", detail=answer.note,
                hint=f"run `clusterrun submit --recover {record.run_id}` later",
            )  # fmt: skip
        clock.sleep(EMPTY_SECONDS / (EMPTY_ANSWERS - 1) if answer.complete else 5.0)


def choose_job(
    scheduler: Scheduler, jobs: Sequence[JobStatus], claimed: str | None, notify: Callable[[str], None]
) -> JobId | None:  # fmt: skip
    """Return the run's job among those with its token: the one with the claim, else the oldest. Cancels pending copies.

    ``claimed`` is the job id in the run's claim, or None.
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
        notify(f"Slurm received the job more than once; keeping job {chosen}, cancelling {', '.join(map(str, extra))}")
        with contextlib.suppress(SchedulerError):  # best effort: the claim makes a copy harmless
            scheduler.cancel(extra)
    return chosen


def settle_submission(store: Store, record: RunRecord, jobs: JobIndex, answered: bool, now: float) -> RunRecord:
    """Update a submission whose submitter is gone, from a scheduler answer, and return the record.

    The submission is recorded as accepted or as not submitted, or stays as it is. A submission recorded as not
    submitted may still be accepted later.
    """
    submission = record.submission
    if submission.state == run_record.ACCEPTED or submitter_is_alive(submission.submitter):
        return record
    claim, job = claims.claim_of(record), jobs.own(record)
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


def submitter_is_alive(who: tuple[str, int, int]) -> bool:
    """Return whether the submitting process is alive on this host."""
    host, pid, start = who
    return host == os.uname().nodename and start != 0 and processes.is_alive(pid, start)
