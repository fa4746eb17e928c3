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

from clusterrun.base.errors import Ambiguous, NotDelivered, Refused, SchedulerError
from clusterrun.base.job import JobId, JobStatus, one_cluster
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import submissions
from clusterrun.scheduler import Scheduler, Submission
from clusterrun.system import processes

#: Seconds to retry a request that was not delivered.
KEEP_SENDING = 90.0
#: Seconds to query a silent controller about an ambiguous submission.
KEEP_QUERYING = 120.0
#: A job counts as absent after this many complete answers over at least this many seconds (Slurm's default
#: MessageTimeout): an interrupted sbatch may still be in the controller's queue.
EMPTY_ANSWERS, EMPTY_SECONDS = 3, 10.0


class Clock(NamedTuple):
    """The protocol's time functions: a monotonic clock in seconds, a sleep, and a random number for jitter."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random


class Staged(NamedTuple):
    """What one sbatch submits: a staged run, or the runs of an array, which have the same token.

    ``accepted`` gets the job's number before the runs' records do. With ``keep`` the records stay if nothing was
    submitted, for ``submit --recover``.
    """

    store: Store
    records: Sequence[RunRecord]
    accepted: Callable[[str], object] = str
    keep: bool = False

    def commit(self, job: JobId, cluster: str = "") -> list[RunRecord]:
        """Record the job id of each run and return the updated records."""
        self.accepted(job.base)
        each = [run.submission.job(job.base)._replace(cluster=job.cluster) for run in self.records]
        return [self.store.commit(run, one, cluster) for run, one in zip(self.records, each, strict=True)]

    def discard(self) -> None:
        for record in () if self.keep else self.records:
            self.store.discard(record)

    def leave(self) -> None:
        """Record that this process, which may live on, no longer submits: the next command may finish it."""
        with contextlib.suppress(OSError):
            for old in self.records:
                record = run_record.load(old.run_dir)  # None if it was discarded
                if record is not None and record.submission.token == old.submission.token and not record.job_id:
                    nobody = replace(record.submission, submitter=(os.uname().nodename, 0, 0))
                    self.store.save_submission(record, nobody)


def begin(store: Store, run: RunRecord) -> RunRecord:
    """Record that this process submits a run again; return the new record."""
    mine = replace(run.submission, state=submissions.SUBMITTING, submitter=processes.submitter())
    return store.save_submission(run, mine)


def submit(
    store: Store, scheduler: Scheduler, record: RunRecord, submission: Submission, *,
    notify: Callable[[str], None], clock: Clock | None = None,
) -> RunRecord:  # fmt: skip
    """Submit a staged run and return its record with the job id; see :func:`submit_staged`."""
    return submit_staged(Staged(store, [record]), scheduler, submission, notify=notify, clock=clock)[0]


def submit_staged(
    staged: Staged, scheduler: Scheduler, submission: Submission, *, notify: Callable[[str], None],
    clock: Clock | None = None,
) -> list[RunRecord]:  # fmt: skip
    """Submit a staged run or array and return its records with their job ids.

    ``notify`` gets a line if it takes longer. Raises Refused or NotDelivered, after deleting the runs (or only this
    submission, if it is not a run's first), or Ambiguous, after which ``submit --recover`` can finish it.
    """
    try:
        return _send(staged, scheduler, submission, notify, clock or Clock())
    except BaseException:
        staged.leave()
        raise


def _send(
    staged: Staged, scheduler: Scheduler, submission: Submission, notify: Callable[[str], None], clock: Clock
) -> list[RunRecord]:  # fmt: skip
    began, tries = clock.now(), 0
    while True:
        tries += 1
        try:
            return staged.commit(scheduler.submit(submission), one_cluster(scheduler.cluster))
        except NotDelivered as error:
            wait = min(2.0**tries, 15.0) * (0.75 + clock.jitter() / 2)
            if clock.now() - began + wait > KEEP_SENDING:
                staged.discard()
                raise NotDelivered(
                    "Slurm did not respond; nothing was submitted", detail=error.detail, hint=error.hint
                ) from error
            notify(f"Slurm is not responding; trying again in {wait:.0f} s")
            clock.sleep(wait)
        except Ambiguous as error:
            job = _job_of(error, scheduler, staged.records, clock, notify)
            if job is not None:
                return staged.commit(job)
            if not error.cut_off or clock.now() - began > KEEP_SENDING + KEEP_QUERYING:
                staged.discard()
                raise _gave_up(error) from error
        except SchedulerError:
            staged.discard()
            raise


def _job_of(
    error: Ambiguous, scheduler: Scheduler, records: Sequence[RunRecord], clock: Clock, notify: Callable[[str], None]
) -> JobId | None:  # fmt: skip
    """Return the job of a submission that ended in this error, None if there is none and a retry is safe."""
    if error.busy:
        notify(f"sbatch waits: {error.busy}; checking whether the job was created")
    elif error.cut_off:
        notify("lost the connection to Slurm; checking whether the job was created")
    job = find_job(scheduler, records, clock, notify)
    if job is None and error.accepted:  # a retry might create a second job: a wrapper may delay the first
        run_id = records[0].run_id
        raise Ambiguous(
            f"sbatch succeeded, but Slurm shows no job for run {run_id}", detail=error.detail,
            hint=f"run `clusterrun submit --recover {run_id}` later",
        ) from error  # fmt: skip
    return job


def _gave_up(error: Ambiguous) -> SchedulerError:
    if not error.cut_off:
        hint = "see the output of sbatch" if error.detail else "submit again"
        return Refused("sbatch failed; no job was created", detail=error.detail, hint=hint)
    if error.busy:
        hint = "try again later; `scontrol show config` shows how many jobs the cluster holds (MaxJobCount)"
        return NotDelivered(f"Slurm accepts no job now: {error.busy}; nothing was submitted", hint=hint)
    message = "lost the connection to Slurm repeatedly; nothing was submitted"
    return NotDelivered(message, detail=error.detail, hint="try again later")


def find_job(
    scheduler: Scheduler, records: Sequence[RunRecord], clock: Clock, notify: Callable[[str], None]
) -> JobId | None:  # fmt: skip
    """Return the job of an ambiguous submission, or None once it is certain that there is none.

    Checks the claims of its runs and the scheduler. Raises Ambiguous if the scheduler does not respond.
    """
    record = records[0]
    token, since = record.submission.token, record.submission.at
    began, first_empty, empties = clock.now(), None, 0
    while True:
        answer = scheduler.find(token, since, record.sent_script)
        claims = filter(None, map(run_record.claim_of, records))
        job = choose_job(scheduler, answer.jobs, next((claim.job for claim in claims), None), notify)
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
    alike = sorted(jobs, key=lambda job: job.id.number)
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
