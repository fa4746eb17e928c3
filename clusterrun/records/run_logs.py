"""A run's own logs: the files, the offset where the run's lines begin, and the uids that may own the files."""

from __future__ import annotations

import os
from dataclasses import replace

from clusterrun.job import JobId, log_paths
from clusterrun.logs.files import Source, log_start
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord


def source_of(run: RunRecord, job: JobId) -> Source:
    """Return the logs of a run's job or task; of my run the files must be mine or root's, else the run owner's."""
    owners = frozenset({os.getuid(), 0} if run.mine else {run.owner})
    return Source(*log_paths(run.logs, job), world_size=run.world_size, begin=begin(run, job), owners=owners)


def begin(run: RunRecord, job: JobId) -> tuple[int, int]:
    """Return the offsets in both logs where the run's lines begin; a job with a reused id appends to older logs.

    The sizes seen at submit come first: a node may write a line before the script records the sizes.
    """
    submission = next((one for one in run.submissions if one.job_id and JobId.parse(one.job_id).base == job.base), None)
    submission = submission or run.submission
    attempts = run_record.attempts(replace(run, submissions=(submission,)), job.task)
    recorded = (log_start(attempts[0]) if attempts else None) or (0, 0)
    seen = submission.log_start if job.task is None else (-1, -1)
    return seen[0] if seen[0] >= 0 else recorded[0], seen[1] if seen[1] >= 0 else recorded[1]
