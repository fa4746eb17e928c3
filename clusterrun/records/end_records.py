"""The end of a run, from the files that the job itself wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.decode import as_int, parse_fields
from clusterrun.base.errors import RequestError
from clusterrun.base.job import STOPPED_STATUS, JobId, JobStatus, Outcome, outcome_of
from clusterrun.base.units import parse_time_limit
from clusterrun.records import rank_records, run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import files


def end_of(run: RunRecord) -> JobStatus | None:
    """Return how a run's newest attempt ended, or None if it has no end record or will be restarted."""
    folders = run_record.attempts(run)
    end = files.read_json(folders[-1] / "end.json") if folders else None
    if end is None or run.job_id is None:
        return None
    claim = run_record.claim_of(run)
    if claim is not None and claim.restart > (as_int(end.get("restart")) or 0):
        return None  # it was restarted and has not created its attempt folder yet
    due, status = str(end.get("due", "")), _exit_status(run, folders[-1], end)
    if due in ("JOB REQUEUE", "PREEMPTION", "NODE FAILURE"):
        return None
    state, reason = _state_and_reason(status, bool(end.get("signal")), due, str(end.get("reason", "")))
    started = rank_records.load_start(folders[-1]) or {"ranks": []}
    last = as_int(end.get("time"))
    joined = as_int(started.get("time"))
    first = min((at for at in (joined, claim.at if claim else None) if at is not None), default=None)
    return replace(
        unknown_status(run, reason),
        state=state,
        outcome=outcome_of(state, status),
        nodes=",".join(dict.fromkeys(rank["node"] for rank in started["ranks"])),
        elapsed=last - first if first is not None and last is not None else None,
        started=first,
        ended=last,
        exit_status=status,
        restarts=as_int(end.get("restart")),
    )


class Hold(NamedTuple):
    """A failed job that keeps its nodes (``hold.json``): until when, in epoch seconds, and how to look at one."""

    until: int
    shell: str = ""


def load_hold(run: RunRecord) -> Hold | None:
    """Return until when a run's newest attempt keeps its nodes after its failure, None if it does not."""
    folders = run_record.attempts(run)
    found = parse_fields(Hold, files.read_json(folders[-1] / "hold.json") or {}) if folders else {"until": None}
    return Hold(**found) if found["until"] is not None else None


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
    return str(run.sources.get(name, ("", ""))[0] or "")


def _time_limit(text: str) -> int | None:
    try:
        return parse_time_limit(text) if text else None
    except RequestError:  # in a record that was changed
        return None


def _exit_status(run: RunRecord, attempt: Path, end: Mapping[str, Any]) -> int:
    """Return the exit status of an attempt.

    The script fails a run if the ranks' end records do not appear in time. If the shared file system shows them later
    and every rank succeeded, the run succeeded too.
    """
    status = 1 if (known := as_int(end.get("status"))) is None else known
    if status == 0 or not as_int(end.get("unmarked")):
        return status
    if sum(end.status == 0 for end in rank_records.load_ends(attempt)) < run.world_size:
        return status
    return STOPPED_STATUS if rank_records.has_stopped(run_record.list_names(attempt)) else 0


def _state_and_reason(status: int, signalled: bool, due: str, reason: str) -> tuple[str, str]:
    """Return Slurm's state and reason for an end record."""
    if status == 0 and not signalled:
        return "COMPLETED", ""
    if signalled and (due == "TIME LIMIT" or reason == "TimeLimit"):
        return "TIMEOUT", "TimeLimit"
    if signalled:
        return "CANCELLED", ""
    return "FAILED", "NonZeroExitCode"
