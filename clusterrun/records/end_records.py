"""The end of a run, from the files that the job itself wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterrun.base.decode import as_int
from clusterrun.base.errors import RequestError
from clusterrun.base.job import STOPPED_STATUS, JobId, JobStatus, Outcome, outcome_of
from clusterrun.base.units import parse_time_limit
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends
from clusterrun.run_folder.claims import Claim
from clusterrun.run_folder.ends import JobEnd


def end_of(run: RunRecord) -> JobStatus | None:
    """Return how a run's newest attempt ended, or None if it has no end record or will be restarted."""
    attempt, claim = run_record.newest_attempt(run), run_record.claim_of(run)
    end = ends.load_job_end(attempt) if attempt else None
    if attempt is None or end is None or run.job_id is None or _starts_again(end, claim):
        return None
    status = _exit_status(run, attempt, end)
    state, reason = _state_and_reason(status, end)
    started = ends.load_start(attempt) or {"ranks": []}
    first, last = _began(started, claim), as_int(end.time)
    return replace(
        unknown_status(run, reason),
        state=state,
        outcome=outcome_of(state, status),
        nodes=",".join(dict.fromkeys(rank["node"] for rank in started["ranks"])),
        elapsed=None if first is None or last is None else last - first,
        started=first,
        ended=last,
        exit_status=status,
        restarts=end.restart,
    )


def _starts_again(end: JobEnd, claim: Claim | None) -> bool:
    """Return whether the job will be restarted, or was and has not created its attempt folder yet."""
    was_restarted = claim is not None and claim.restart > (end.restart or 0)
    return was_restarted or end.due in ("JOB REQUEUE", "PREEMPTION", "NODE FAILURE")


def _began(start: Mapping[str, Any], claim: Claim | None) -> int | None:
    """Return when an attempt began: the job claims its run, then its ranks record their start."""
    times = filter(None, (as_int(start.get("time")), claim.at if claim else None))
    return min(times, default=None)


def load_hold(run: RunRecord) -> tuple[int, str]:
    """Return ``ends.load_hold`` of a run's newest attempt."""
    attempt = run_record.newest_attempt(run)
    return ends.load_hold(attempt) if attempt is not None else (0, "")


def unknown_status(run: RunRecord, reason: str) -> JobStatus:
    """Return what a run's record alone shows of its job."""
    partition, time_limit = _requested(run, "partition"), _time_limit(_requested(run, "time"))
    return status_of(
        run, state="UNKNOWN", outcome=Outcome.UNKNOWN, reason=reason, partition=partition, time_limit=time_limit
    )


def status_of(run: RunRecord, **known: Any) -> JobStatus:
    """Return what a run's record shows of its job, beside what is ``known`` of it."""
    return JobStatus(
        id=run.job_id or JobId("0"),
        name=f"{run.name}.{run.submission.token[:8]}",
        user=run.user,
        node_count=run.nodes,
        submitted=run.submission.at,
        source="record",
        **known,
    )


def _requested(run: RunRecord, name: str) -> str:
    """Return the value of an option that the run was submitted with; empty if it was left to Slurm."""
    return str(run.option(name) or "")


def _time_limit(text: str) -> int | None:
    try:
        return parse_time_limit(text) if text else None
    except RequestError:  # in a record that was changed
        return None


def _exit_status(run: RunRecord, attempt: Path, end: JobEnd) -> int:
    """Return the exit status of an attempt.

    The script fails a run if the ranks' end records do not appear in time. If the shared file system shows them later
    and every rank succeeded, the run succeeded too.
    """
    status = 1 if end.status is None else end.status
    if status == 0 or not end.unmarked:
        return status
    if sum(end.status == 0 for end in ends.load_ends(attempt)) < run.world_size:
        return status
    return STOPPED_STATUS if ends.STOPPED in run_record.list_names(attempt) else 0


def _state_and_reason(status: int, end: JobEnd) -> tuple[str, str]:
    """Return Slurm's state and reason for an end record."""
    if not end.signal:
        return ("FAILED", "NonZeroExitCode") if status else ("COMPLETED", "")
    is_timeout = end.due == "TIME LIMIT" or end.reason == "TimeLimit"
    return ("TIMEOUT", "TimeLimit") if is_timeout else ("CANCELLED", "")


def were_separate(run: RunRecord, attempt: Path) -> bool:
    """Return whether the ranks never joined a process group, in a run that was not submitted as independent."""
    return run.world_size > 1 and not run.is_independent and ends.load_any_joined_group(attempt) is False
