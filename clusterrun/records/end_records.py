"""How a run's newest attempt ended, by what the job itself wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterrun.job import STOPPED_STATUS, JobStatus, outcome_of
from clusterrun.records import rank_records, run_record
from clusterrun.records.run_record import RunRecord


def end_of(run: RunRecord) -> JobStatus | None:
    """How a run's newest attempt says it ended, None where it has not, or will start again."""
    folders = run_record.attempts(run)
    end = run_record.read_json(folders[-1] / "end.json") if folders else None
    if end is None or run.job_id is None:
        return None
    claim = run_record.claim_of(run)
    if claim is not None and claim.restart > whole(end.get("restart"), 0):
        return None  # it was started again and has not got as far as its own folder
    due, status = str(end.get("due", "")), _exit_status(run, folders[-1], end)
    if due in ("JOB REQUEUE", "PREEMPTION", "NODE FAILURE"):
        return None
    state, reason = _word(status, bool(end.get("signal")), due, str(end.get("reason", "")))
    started = rank_records.load_start(folders[-1]) or {"ranks": []}
    last = whole(end.get("time"), None)
    joined = whole(started.get("time"), None)
    first = min((at for at in (joined, claim.at if claim else None) if at is not None), default=None)
    return JobStatus(
        id=run.job_id,
        state=state,
        outcome=outcome_of(state, status),
        reason=reason,
        name=f"{run.name}.{run.submission.token[:8]}",
        user=run.user,
        node_count=run.nodes,
        nodes=",".join(dict.fromkeys(rank["node"] for rank in started["ranks"])),
        elapsed=last - first if first is not None and last is not None else None,
        submitted=run.submission.at,
        started=first,
        ended=last,
        exit_status=status,
        restarts=whole(end.get("restart"), None),
        source="record",
    )


def _exit_status(run: RunRecord, attempt: Path, end: Mapping[str, Any]) -> int:
    """The exit status of an attempt.

    The script fails a run whose ranks' end marks it does not find in time; where a shared file system has shown them
    since and each rank ended well, the run did too.
    """
    status = whole(end.get("status"), 1)
    if status == 0 or not whole(end.get("unmarked"), 0):
        return int(status)
    if sum(end.status == 0 for end in rank_records.load_ends(attempt)) < run.world_size:
        return int(status)
    return STOPPED_STATUS if rank_records.has_stopped(run_record.names(attempt)) else 0


def _word(status: int, signalled: bool, due: str, reason: str) -> tuple[str, str]:
    """Slurm's state word for an end record, and the reason."""
    if status == 0:
        return "COMPLETED", ""
    if signalled and (due == "TIME LIMIT" or reason == "TimeLimit"):
        return "TIMEOUT", "TimeLimit"
    if signalled:
        return "CANCELLED", ""
    return "FAILED", "NonZeroExitCode"


def whole(value: object, default: int | None) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
        return default
    return int(value)
