"""The launches of a job, its goodput, and until when its nodes are held after a failure (``--on-failure hold``)."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from clusterrun.base.job import STOPPED_STATUS, JobStatus
from clusterrun.base.units import format_duration, plural
from clusterrun.records import launches
from clusterrun.records.end_records import end_of, load_hold
from clusterrun.records.launches import Goodput
from clusterrun.records.progress import RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder.launches import Launch
from clusterrun.state.reconcile import RunState

_LONGEST = 1e9  # seconds; a damaged record may hold any number


def launches_of(run: RunRecord, job: JobStatus, ranks: Sequence[RankProgress], now: float) -> list[Launch]:
    """Return the launches of a run, with what a running one has done by ``now`` (seconds since 1970)."""
    return launches.until_now(launches.load_launches(run, job.id.task), ranks, now if job.has_started else None)


def goodput_of(state: RunState, of_run: Sequence[Launch]) -> Goodput | None:
    """Return the goodput of a run by its launches; None if it is not known, and for the tasks of an array."""
    return launches.goodput(of_run, state.figures) if state.status.id.task is None else None


def launch_line(found: Sequence[Launch]) -> str:
    """Return the number of launches, and why the one before the last ended; empty for a single one."""
    if len(found) < 2:
        return ""
    before = found[-2]
    if not before.cause:
        return str(len(found))
    ended = "ended" if before.status in (0, STOPPED_STATUS, 128 + signal.SIGTERM) else "failed"
    return f"{len(found)}; the previous launch {ended}: {before.cause}"


def goodput_line(found: Goodput | None) -> str:
    """Return the goodput in a line; empty if it is not known."""
    if found is None:
        return ""
    line = f"{format_duration(found.useful_s)} of {format_duration(found.allocated_s)} allocated"
    if found.restarts:
        cost = "" if found.lost_s is None else f" cost {format_duration(found.lost_s)}"
        line += f"; {plural(found.restarts, 'restart')}{cost}"
    return f"{found.share:.0%} ({line})".replace("%", " %", 1)


def launches_json(run: RunRecord, found: Sequence[Launch]) -> list[dict[str, Any]]:
    """Return the launches of a run for ``--json``, with their jobs; times in epoch seconds, durations in seconds."""
    jobs = {one.token: one.job_id or None for one in run.submissions}
    return [
        {
            "job_id": jobs.get(one.token),
            **{name: getattr(one, name) for name in ("attempt", "status", "cause", "began", "first_step")},
            "nodes": one.nodes(),
            "ended": one.ended if one.status is not None else None,  # else it runs, or recorded no end
            "last_step": one.step,
            "lost_s": lost,
        }
        for one, lost in zip(found, launches.lost_seconds(found), strict=True)
    ]


def held_line(state: RunState) -> str:
    """Return until when the job's nodes are held, and the command that opens a shell there; empty if they are not."""
    if state.record is None or state.status.state != "RUNNING":
        return ""
    until, shell = load_hold(state.record)
    if not 0 < until - time.time() < _LONGEST:
        return ""
    return f"until {time.strftime('%H:%M', time.localtime(until))}, after a failure; open a shell with: {shell}"


def failed_state(state: RunState) -> RunState | None:
    """Return how a held job failed, None for any other job."""
    if not held_line(state):
        return None
    ended = end_of(state.run)
    return replace(state, status=ended) if ended is not None else None
