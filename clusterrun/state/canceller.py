"""Who cancelled a job: the same in ``list``, ``status``, ``why`` and the last lines of ``wait`` and ``logs -f``."""

from __future__ import annotations

import os

from clusterrun.base.job import JobStatus
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder.safe_files import user_name


def canceller(run: RunRecord, status: JobStatus) -> str:
    """Return who or what cancelled a run's job; empty if it was not cancelled, or if that is not known."""
    if status.state != "CANCELLED":
        return ""
    if run.submission.cancel_asked:
        return "`clusterrun cancel`"
    if status.reason == "DependencyNeverSatisfied":
        return f"--kill-on-invalid-dep: {run.sources.get('dependency', ('its dependency', ''))[0]} was never satisfied"
    if status.id.is_local:
        return "a signal to the job's supervisor"
    return format_user(status.cancelled_by) if status.cancelled_by is not None else ""


def format_user(uid: int) -> str:
    """Return a user's name, and whether that is the current one."""
    name = user_name(uid)
    return f"{name} (you)" if uid == os.getuid() else name
