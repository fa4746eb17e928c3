"""A run's own logs: the files, the byte from which on each is the run's, and whose files they may be."""

from __future__ import annotations

import os
from dataclasses import replace

from clusterrun.job import JobId
from clusterrun.logs import Source, log_paths
from clusterrun.logs.clock import log_start
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord


def source_of(run: RunRecord, job: JobId) -> Source:
    """The logs of a run's job or task."""
    return Source(*log_paths(run.logs, job), world_size=run.world_size, begin=begin(run, job), owners=owners(run))


def begin(run: RunRecord, job: JobId) -> tuple[int, int]:
    """The offsets in both logs at which the run's own lines begin: a job id that came again appends to what is there.

    What the submitter saw goes first: a node may write a line before the script's first act, which notes the sizes too.
    """
    submission = next((one for one in run.submissions if _is_of(one.job_id, job)), run.submission)
    attempts = run_record.attempts(replace(run, submissions=(submission,)), job.task)
    noted = (log_start(attempts[0]) if attempts else None) or (0, 0)
    seen = submission.log_start if job.task is None else (-1, -1)
    return seen[0] if seen[0] >= 0 else noted[0], seen[1] if seen[1] >= 0 else noted[1]


def owners(run: RunRecord) -> frozenset[int]:
    """The uids whose files may be the run's logs: its owner's, and root's where it is mine."""
    return frozenset({os.getuid(), 0} if run.mine else {run.owner})


def _is_of(job_id: str, job: JobId) -> bool:
    return bool(job_id) and JobId.parse(job_id).base == job.base
