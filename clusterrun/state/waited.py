"""How long a job waited before its first start, and for what, by what its first launch or the scheduler recorded."""

from __future__ import annotations

from typing import Any, NamedTuple

from clusterrun.base.units import format_duration
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import launches
from clusterrun.state.reconcile import RunState

LEAST_S = 60
"""Seconds of waiting that are worth a line."""


class Waited(NamedTuple):
    """The seconds that a job waited; the first ``blocked_s`` of them nothing could start it (None: not known).

    ``blocked_by`` says why: its dependency, or a hold or begin time.
    """

    seconds: float
    blocked_s: float | None = None
    blocked_by: str = ""

    def line(self) -> str:
        """Return ``12:00 (4:00 for its dependency, then 8:00 in the queue)``; empty for a short time."""
        if self.seconds < LEAST_S:
            return ""
        if self.blocked_s is None:
            return format_duration(self.seconds)
        queued = self.seconds - self.blocked_s
        if self.blocked_s < 1:
            return f"{format_duration(self.seconds)} in the queue"
        blocked = f"{format_duration(self.blocked_s)} {self.blocked_by}"
        if queued < 1:
            return blocked
        return f"{format_duration(self.seconds)} ({blocked}, then {format_duration(queued)} in the queue)"

    def json(self) -> dict[str, Any]:
        """Return the values for ``--json``."""
        queued = None if self.blocked_s is None else self.seconds - self.blocked_s
        return {"seconds": self.seconds, "blocked_s": self.blocked_s, "queued_s": queued}


def waited(state: RunState) -> Waited | None:
    """Return how long a job waited from its submission to its first start; None if that is not known."""
    job, run = state.status, state.record
    if run is not None:
        return _waited_of(run, job.id.task)
    if job.tasks or job.submitted is None or job.started is None or job.started < job.submitted:
        return None
    return Waited(job.started - job.submitted)


def _waited_of(run: RunRecord, task: int | None) -> Waited | None:
    """Return how long a run's job waited, by its first launch: what Slurm told it, else when it began."""
    folders = run_record.attempts(run, task)
    if not folders:
        return None
    times, began = launches.find_queue_times(folders[0]), launches.load_own(folders[0]).began
    submitted, started = times.get("submitted", run.submission.at), times.get("started", began)
    if started is None or started < submitted:
        return None
    has_dependency = bool(run.sources.get("dependency", ("", ""))[0])
    eligible: float | None = times.get("eligible")
    if run.scheduler == "local":  # where a job starts as soon as its dependency allows
        eligible = started if has_dependency else None
    by = "for its dependency" if has_dependency else "held or before its begin time"
    if eligible is None:
        return Waited(started - submitted)
    return Waited(started - submitted, min(max(0, eligible - submitted), started - submitted), by)
