"""Cancel local jobs, from any process, and report what was found."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from clusterrun.base.job import TERMINAL, JobId, JobStatus
from clusterrun.scheduler import Cancelled
from clusterrun.scheduler.local import mark
from clusterrun.scheduler.local.jobfiles import State, is_id, place_of, read_job, read_state, read_status, script_lives
from clusterrun.scheduler.local.processes import Life, end_members, members, send
from clusterrun.scheduler.local.safe_files import Unreadable, write_json
from clusterrun.system.processes import find_process

#: Seconds without an answer after which a job on a machine that is not visible from here is given up: a network file
#: system may show the request that late.
GIVE_UP = 90.0
_START = 10.0  # seconds that a submission in progress may take to write the first state
_MARGIN = 5.0  # seconds after the grace period for a supervisor to write the end


def cancel(root: Path, ids: Sequence[JobId], grace: float) -> Sequence[Cancelled]:
    """Cancel jobs below ``<state>/local`` in parallel; return when they have ended, or a little after ``grace``."""
    results = {id: _request_end(root / str(id), id, grace) for id in ids}
    until = time.monotonic() + grace + _MARGIN
    return [result or _await_end(root / str(id), id, until) for id, result in results.items()]


def _request_end(folder: Path, id: JobId, grace: float) -> Cancelled | None:
    """Signal the job's supervisor; return a result if there is nothing to wait for."""
    status = _started_status(folder) if is_id(folder.name) else None
    if status is None:
        return Cancelled(id, False, f"there is no local job {id}")
    state = _state(folder)
    if state is None:
        return Cancelled(id, False, f"the job cannot be cancelled now: {_format_state(status)}")
    if not state.is_over:
        life = state.supervisor.life(folder / mark.NAME)
        if life is Life.ALIVE and state.supervisor.is_here:
            supervisor = find_process(state.supervisor.pid)
            if supervisor is not None and supervisor.start == state.supervisor.start:
                send(supervisor, signal.SIGTERM)
            return None
        status = read_status(folder) or status
        if status.state not in TERMINAL and life in (Life.ALIVE, Life.ELSEWHERE):
            return _request_end_elsewhere(folder, id, life, place_of(state))
        if life is Life.GONE:
            return _end_orphan(folder, id, grace)
    return Cancelled(id, False, f"the job had already ended: {_format_state(status)}")


def _request_end_elsewhere(folder: Path, id: JobId, life: Life, place: str) -> Cancelled | None:
    """Write a request for a supervisor that no signal reaches; give the job up if an old one is unanswered."""
    try:
        requested = mark.end_requested_at(folder / mark.NAME)
        mark.request_end(folder / mark.NAME)
        if life is Life.ALIVE or requested is None or time.time() - requested < GIVE_UP:
            return None
        write_json(folder / "cancelled.json", {"version": 1, "at": int(time.time()), "ended": 0})
    except OSError as error:
        return Cancelled(id, False, f"the job is running {place}, but its folder is not writable: {error.strerror}")
    since = time.strftime("%F %T", time.localtime(requested))
    return Cancelled(id, True, f"the job ran {place} and has not responded since {since}; it is now recorded as ended")


def _state(folder: Path) -> State | None:
    try:
        return read_state(folder)
    except Unreadable:
        return None


def _started_status(folder: Path) -> JobStatus | None:
    """Return the job's state; wait for the first one while a submission is in progress."""
    status = read_status(folder)
    until = time.monotonic() + _START
    while status is not None and not (folder / "state.json").exists() and time.monotonic() < until:
        time.sleep(0.05)
        status = read_status(folder)
    return status


def _end_orphan(folder: Path, id: JobId, grace: float) -> Cancelled:
    """End the processes of a job whose supervisor has ended."""
    job, state, before = read_job(folder), _state(folder), read_status(folder)
    if job is None or state is None or before is None:
        return Cancelled(id, False, f"the folder of job {id} was removed")
    ended = 0
    if not state.is_over:  # it may have ended normally in the meantime
        until = time.monotonic() + grace  # the kernel has sent the script TERM: let it write its record
        while script_lives(state) and time.monotonic() < until:
            time.sleep(0.05)
        ended, left = end_members(job.token)
        if left:
            return Cancelled(
                id,
                False,
                f"the job's supervisor had already exited, and {left} of the job's processes could not be killed",
            )
    after = read_status(folder) or before
    if ended and after.state == "NODE_FAIL":  # without an end record of its own, the cancel is the end
        with contextlib.suppress(OSError):
            write_json(folder / "cancelled.json", {"version": 1, "at": int(time.time()), "ended": ended})
    if ended or before.state not in TERMINAL:
        noun = "process" if ended == 1 else "processes"
        killed = f"killed {ended} remaining {noun}" if ended else "no processes remained"
        return Cancelled(id, True, f"the job's supervisor was gone; {killed}")
    return Cancelled(id, False, f"the job had already ended: {_format_state(after)}")


def _await_end(folder: Path, id: JobId, until: float) -> Cancelled:
    """Wait for the last state that the supervisor writes, and return the result."""
    while (status := read_status(folder)) is not None and status.state not in TERMINAL:
        if time.monotonic() >= until:
            if _is_stopped(folder):
                return Cancelled(id, True, f"its processes have ended, but its state in {folder} cannot be written")
            return Cancelled(id, False, f"the job has not ended yet: {_format_state(status)}{_lost_hint(id, status)}")
        time.sleep(0.02)
    if status is None:
        return Cancelled(id, False, f"the folder of job {id} was removed")
    if status.state == "CANCELLED":
        return Cancelled(id, True)
    return Cancelled(id, False, f"the job ended before the cancel took effect: {_format_state(status)}")


def _is_stopped(folder: Path) -> bool:
    """Return whether a job that has started here has no process left, apart from its supervisor."""
    job, state = read_job(folder), _state(folder)
    if job is None or state is None or state.script_pid is None or not state.supervisor.is_here:
        return False
    return not members(job.token, state.supervisor.pid)


def _lost_hint(id: JobId, status: JobStatus) -> str:
    """Return a hint for a job whose machine or container may be gone."""
    if status.state != "UNKNOWN":
        return ""
    return f"; if that machine or container is gone for good, run `clusterrun cancel {id}` again after {GIVE_UP:.0f} s"


def _format_state(status: JobStatus) -> str:
    return f"{status.state} ({status.reason})" if status.reason else status.state
