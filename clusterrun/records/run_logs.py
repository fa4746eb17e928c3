"""Where the logs of a run's job are, and where the job's lines begin in them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterrun.base.job import JobId, log_paths
from clusterrun.records.run_record import RunRecord, attempts_of, submission_of

if TYPE_CHECKING:
    from clusterrun.logs.files import Source


def log_source(run: RunRecord, job: JobId) -> Source:
    """Return the logs of a run's job or task; of my run the files must be mine or root's, else the run owner's."""
    from clusterrun.logs.files import Source  # `list` and `status` read no log

    owners = frozenset({os.getuid(), 0} if run.mine else {run.owner})
    return Source(*log_paths(run.logs, job), world_size=run.world_size, begin=log_begin(run, job), owners=owners)


def timed_log_source(run: RunRecord, job: JobId) -> Source:
    """Return ``log_source`` with the log clock, which says in which order the lines of both files were written."""
    from clusterrun.logs.files import read_ticks

    source = log_source(run, job)
    return replace(source, ticks=read_ticks(attempts_of(run, job), log_paths(run.logs, job), source.begin))


def log_begin(run: RunRecord, job: JobId) -> tuple[int, int]:
    """Return the offsets in both logs where the run's lines begin; a job with a reused id appends to older logs.

    The sizes seen at submit come first: a node may write a line before the script records the sizes.
    """
    from clusterrun.logs.files import log_start

    submission, folders = submission_of(run, job), attempts_of(run, job)
    recorded = (log_start(folders[0]) if folders else None) or (0, 0)
    seen = submission.log_start if job.task == submission.task else (-1, -1)
    return seen[0] if seen[0] >= 0 else recorded[0], seen[1] if seen[1] >= 0 else recorded[1]
