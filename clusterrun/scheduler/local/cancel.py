"""Cancel local jobs, from any process, and report what was found."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clusterrun.base.job import JobId
from clusterrun.scheduler import Cancelled
from clusterrun.scheduler.local.jobfiles import (
    STARTING,
    State,
    Unreadable,
    is_id,
    is_supervised,
    read_job,
    read_state,
    write_state,
)
from clusterrun.scheduler.local.processes import end_members, members, send

_START = 10.0  # seconds that a submission in progress may take to write the first state
_MARGIN = 5.0  # seconds after the grace period for a supervisor to write the end


def cancel(root: Path, ids: Sequence[JobId], grace: float) -> Sequence[Cancelled]:
    """Cancel jobs below ``<state>/local`` in parallel; return when they have ended, or a little after ``grace``."""
    results = {id: _request_end(root / str(id), id, grace) for id in ids}
    until = time.monotonic() + grace + _MARGIN
    return [result or _await_end(root / str(id), id, until) for id, result in results.items()]


def _request_end(folder: Path, id: JobId, grace: float) -> Cancelled | None:
    """Send TERM to the job's supervisor; return a result if there is nothing to wait for."""
    try:
        state = _started_state(folder) if is_id(folder.name) else None
        if state is None:
            return Cancelled(id, False, f"there is no local job {id}")
        if state.state == "UNKNOWN":
            return Cancelled(id, False, f"the job cannot be cancelled now: {_describe(state)}")
        if not is_supervised(folder):
            return _end_orphan(folder, id, state, grace)
        if state.is_over:
            return Cancelled(id, False, f"the job had already ended: {_describe(state)}")
        if not send(*state.supervisor, signal.SIGTERM) and is_supervised(folder):
            return Cancelled(id, False, "the job is running in another container of this machine; cancel it there")
    except Unreadable as error:
        return Cancelled(id, False, f"the job cannot be cancelled now: UNKNOWN ({error})")
    return None


def _started_state(folder: Path) -> State | None:
    """Return the job's state; wait for the first one while a submission is in progress."""
    until = time.monotonic() + _START
    while (state := read_state(folder)) is STARTING and time.monotonic() < until:
        time.sleep(0.05)
    return state


def _end_orphan(folder: Path, id: JobId, state: State, grace: float) -> Cancelled:
    """End what is left of a job without a supervisor; mostly that is nothing, as the job has ended."""
    until = time.monotonic() + grace  # the kernel has sent the script TERM: let it write its record
    while state.state == "COMPLETING" and time.monotonic() < until:
        time.sleep(0.05)
        state = read_state(folder) or state
    job = read_job(folder)
    ended, left = end_members(job.token) if job is not None else (0, 0)
    if left:
        why = f"the job's supervisor had already exited, and {left} of the job's processes could not be killed"
        return Cancelled(id, False, why)
    state = read_state(folder) or state
    if ended == 0:
        return Cancelled(id, False, f"the job had already ended: {_describe(state)}")
    if state.state == "NODE_FAIL":  # without an end record of its own, the cancel is the end
        with contextlib.suppress(OSError):
            write_state(folder, replace(state, state="CANCELLED", reason="", ended=int(time.time())))
    noun = "process" if ended == 1 else "processes"
    return Cancelled(id, True, f"the job's supervisor was gone; killed {ended} remaining {noun}")


def _await_end(folder: Path, id: JobId, until: float) -> Cancelled:
    """Wait for the last state that the supervisor writes, and return the result."""
    try:
        while (state := read_state(folder)) is not None and not state.is_over:
            if time.monotonic() >= until:
                return _still_running(folder, id, state)
            time.sleep(0.02)
    except Unreadable as error:
        return Cancelled(id, False, f"the job has not ended yet: UNKNOWN ({error})")
    if state is None:
        return Cancelled(id, False, f"the folder of job {id} was removed")
    if state.state == "CANCELLED":
        return Cancelled(id, True)
    return Cancelled(id, False, f"the job ended before the cancel took effect: {_describe(state)}")


def _still_running(folder: Path, id: JobId, state: State) -> Cancelled:
    """Return the result for a job that has not ended in time; only its supervisor may be left, on a full disk."""
    job = read_job(folder)
    if job is not None and state.started is not None and not members(job.token, state.supervisor[0]):
        return Cancelled(id, True, f"its processes have ended, but its state in {folder} cannot be written")
    return Cancelled(id, False, f"the job has not ended yet: {_describe(state)}")


def _describe(state: State) -> str:
    return f"{state.state} ({state.reason})" if state.reason else state.state
