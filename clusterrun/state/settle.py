"""What became of a submission whose submitter is gone, from the claim, the queue and the sweep's file."""

from __future__ import annotations

import os
from dataclasses import replace

from clusterrun.records import run_record, sweeps
from clusterrun.records.ownership import JobIndex
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import submissions
from clusterrun.system.processes import submitter_is_alive

#: Seconds after which an abandoned submission without a job counts as never delivered: twice the lifetime of an
#: orphaned sbatch. On another host we cannot see the submitter, so we wait as long as the protocol may take.
SETTLED_AFTER, SETTLED_ELSEWHERE = 60, 300


def settle_submission(store: Store, record: RunRecord, jobs: JobIndex, answered: bool, now: float) -> RunRecord:
    """Update a submission whose submitter is gone, from a scheduler answer, and return the record.

    The submission is recorded as accepted or as not submitted, or stays as it is. A task of a sweep whose file shows
    that its array was never sent is not submitted, without any answer. A submission recorded as not
    submitted may still be accepted later.
    """
    submission = record.submission
    if submission.state == submissions.ACCEPTED or submitter_is_alive(submission.submitter):
        return record
    claim, job = run_record.claim_of(record), jobs.own(record)
    if claim is not None:
        return store.commit(record, submission.job(claim.job), claim.cluster)
    if job is not None:
        return store.commit(record, submission.job(job.id.base))
    number = sweeps.job_of(record) if submission.task is not None else ""
    if number:
        return store.commit(record, submission.job(number))
    here = submission.submitter[0] == os.uname().nodename
    settled = answered and now - submission.at > (SETTLED_AFTER if here else SETTLED_ELSEWHERE)
    never_sent = number is None and (here or not submission.submitter[1])  # a command of another host may live
    if submission.state == submissions.SUBMITTING and (settled or never_sent):
        return store.save_submission(record, replace(submission, state=submissions.NOT_SUBMITTED))
    return record
