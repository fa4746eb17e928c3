"""Compute what a job requests in a limit's unit, and format such amounts. Pure."""

from __future__ import annotations

from clusterrun.base.units import format_duration, format_tres, plural
from clusterrun.scheduler.slurm.limits import LimitValue
from clusterrun.scheduler.slurm.reasons import Limit
from clusterrun.scheduler.slurm.values import parse_duration
from clusterrun.why.pending.facts import PendingFacts

#: Limits on the number of running jobs, and of pending and running jobs.
_JOBS = {"GrpJobs", "MaxJobs", "MaxJobsPU", "MaxJobsPA"}
QUEUED_JOBS = {"GrpSubmitJobs", "MaxSubmitJobs", "MaxSubmitJobsPU", "MaxSubmitJobsPA"}
_MINUTES = ("GrpTRESMins", "GrpTRESRunMins", "MaxTRESMinsPJ", "MaxTRESRunMinsPA", "MaxTRESRunMinsPU")


def is_per_job(limit: Limit) -> bool:
    """Return whether the limit applies to each job, so that nothing of it is in use."""
    return limit.field in ("MaxTRESPJ", "MaxTRESPN", "MaxTRESMinsPJ", "MinTRESPJ", "MaxWallPJ")


def format_amount(limit: Limit, bound: LimitValue, value: float) -> str:
    """Return an amount with its unit."""
    if limit.field in _JOBS:
        return plural(int(value), "running job")
    if limit.field in QUEUED_JOBS:
        return f"{plural(int(value), 'job')} pending or running"
    if limit.field in ("MaxWallPJ", "GrpWall"):
        return format_duration(value * 60)
    if limit.field in _MINUTES:
        return f"{value:.10g} minutes of {bound.tres}"
    return format_tres(bound.tres, value)


def format_use(limit: Limit, bound: LimitValue, value: float) -> str:
    """Return how much of the limit is used."""
    if limit.field in _JOBS:
        return f"{int(value)} running now"
    if limit.field in QUEUED_JOBS:
        return f"{int(value)} pending or running now"
    used = "used so far" if limit.field in ("GrpTRESMins", "GrpWall") else "in use"
    return f"{format_amount(limit, bound, value)} {used}"


def requested_amount(facts: PendingFacts, limit: Limit, bound: LimitValue) -> float | None:
    """Return what the job requests in the limit's unit; None if unknown, or if the limit counts jobs."""
    time_limit = parse_duration(facts.job.get("TimeLimit", ""))
    minutes = time_limit / 60 if time_limit is not None else None
    if limit.field in ("MaxWallPJ", "GrpWall"):
        return minutes
    asked = facts.requested.get(bound.tres)
    if limit.field in _MINUTES:
        return asked * minutes if asked is not None and minutes is not None else None
    if limit.field == "MaxTRESPN" and asked is not None:
        return asked / max(1.0, facts.requested.get("node", 1.0))
    return asked if bound.tres else None
