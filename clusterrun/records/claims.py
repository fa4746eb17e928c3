"""Read the claim of a submission: the one job that may work for it (``worker/claim.py`` writes it)."""

from __future__ import annotations

import os
from typing import NamedTuple

from clusterrun.base.errors import RequestError
from clusterrun.base.job import JobId
from clusterrun.records.run_record import CLUSTER_NAME, RunRecord, is_count
from clusterrun.run_folder import safe_files


class Claim(NamedTuple):
    """The job that claimed a submission; ``restart`` is Slurm's restart count, ``at`` the time in epoch seconds."""

    cluster: str
    job: str
    restart: int
    at: int


def claim_of(record: RunRecord) -> Claim | None:
    """Return the claim of the newest submission, or None if there is none or it cannot be read."""
    try:
        return read_claim(record)
    except OSError:
        return None


def read_claim(record: RunRecord) -> Claim | None:
    """Return the claim of the newest submission, or None; raises OSError if it cannot be read."""
    path = record.run_dir / "claims" / record.submission.key / "owner"
    try:
        with safe_files.open_file(path) as descriptor:
            text, at = os.read(descriptor, 1024), int(os.fstat(descriptor).st_mtime)
        cluster, job, restart = text.decode("ascii").split()
        known = CLUSTER_NAME.fullmatch(cluster) and is_count(restart)
        return Claim(cluster, JobId.parse(job).base, int(restart), at) if known else None
    except FileNotFoundError:
        return None
    except (ValueError, RequestError):
        return None
