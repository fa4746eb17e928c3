"""The files of local jobs.

    <state>/local/L7/job.json         the request; written once, by submit
                     state.json       the state; written by the job's supervisor only
                     alive            locked by the supervisor while it is alive (mark.py)
                     cancelled.json   written by a cancel that found no supervisor
                     supervisor.log   errors of the supervisor

Folders are 0700 and files 0600. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from clusterrun.base.decode import Damaged, build
from clusterrun.base.job import TERMINAL, JobId, JobStatus, outcome_of
from clusterrun.run_folder import safe_files
from clusterrun.scheduler.local import mark
from clusterrun.scheduler.local.processes import Identity, Life, members
from clusterrun.scheduler.local.safe_files import Unreadable, read_json, write_json
from clusterrun.system.processes import is_alive

START_LIMIT = 30.0
"""Seconds within which a supervisor writes its first state; an older folder without a state is not a job."""
_ID = re.compile(r"L[1-9][0-9]{0,17}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job's request, as in ``job.json``. Times are epoch seconds, limits seconds.

    The environment is not part of it: it may contain secrets, and stays in memory.
    """

    id: str
    token: str
    run_id: str
    run_dir: str
    script: str
    workdir: str
    logs: str
    umask: int
    nodes: int
    tasks_per_node: int
    gpus_per_node: int
    time_limit: int | None
    dependency: str
    submitted: int
    grace: float  # seconds between TERM and KILL
    kill_on_invalid_dep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A job's state, as in ``state.json``, with Slurm's names. ``started_clock`` is seconds of :func:`clock`."""

    supervisor: Identity
    state: str = "PENDING"
    reason: str = ""
    started: int | None = None
    started_clock: float | None = None
    ended: int | None = None
    elapsed: int | None = None
    exit_status: int | None = None
    script_pid: int | None = None
    script_start: int | None = None
    devices: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL


def clock() -> float:
    """Return the seconds since boot, sleep included: a clock that nobody can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def is_id(text: str) -> bool:
    """Return whether the text is the id of a local job: L1, L2, …"""
    return _ID.fullmatch(text) is not None


def check_root(root: Path) -> None:
    """Raise OSError if ``<state>/local`` exists and another user could have written to it."""
    with contextlib.suppress(FileNotFoundError):
        found = root.lstat()
        why = safe_files.why_untrusted(found, os.getuid()) if stat.S_ISDIR(found.st_mode) else "not a folder"
        if why:
            raise OSError(errno.EPERM, why, str(root))


def job_folders(root: Path) -> Iterator[Path]:
    """Return the jobs' folders below ``<state>/local``, oldest id first. Raises OSError if it cannot be listed."""
    check_root(root)
    try:
        names = [entry.name for entry in root.iterdir() if is_id(entry.name)]
    except FileNotFoundError:
        return iter(())
    return (root / name for name in sorted(names, key=lambda name: int(name[1:])))


def read_job(folder: Path) -> Job | None:
    """Return a job's request, None if it is not written yet. Raises Unreadable."""
    value = read_json(folder / "job.json")
    try:
        job = build(Job, value) if value is not None else None
    except Damaged as error:
        raise Unreadable("job.json is damaged") from error
    if job is not None and job.id != folder.name:
        raise Unreadable(f"job.json belongs to job {job.id}")
    return job


def write_job(folder: Path, job: Job) -> None:
    """Write a job's request. Raises OSError."""
    write_json(folder / "job.json", {"version": 1} | asdict(job))


def read_state(folder: Path) -> State | None:
    """Return the state that the supervisor wrote last, None before the first. Raises Unreadable."""
    value = read_json(folder / "state.json")
    if value is None:
        return None
    try:
        return build(State, value, supervisor=identity_of(value.get("supervisor")))
    except Damaged as error:
        raise Unreadable("state.json is damaged") from error


def write_state(folder: Path, state: State) -> None:
    """Write a job's state. Raises OSError."""
    write_json(folder / "state.json", {"version": 1} | asdict(state))


def identity_of(value: Any) -> Identity:
    """Return the process that a file names. Raises Damaged for anything else."""
    if not isinstance(value, dict):
        raise Damaged("not an object")
    return build(Identity, value)


def is_starting(folder: Path) -> bool:
    """Return whether a folder without a state may still become a job: it is only seconds old."""
    try:
        return abs(time.time() - folder.stat().st_mtime) <= START_LIMIT
    except OSError:
        return False


def read_status(folder: Path) -> JobStatus | None:
    """Return a job's state, after checking that its supervisor is alive; None if the folder is not a job."""
    id = JobId.parse(folder.name)
    try:
        job = read_job(folder)
        state = read_state(folder) if job is not None else None
        if job is None:
            return None
        if state is None:
            return _status(id, job, None, "PENDING", "starting") if is_starting(folder) else None
        if state.is_over or (life := state.supervisor.life(folder / mark.NAME)) is Life.ALIVE:
            return _status(id, job, state, state.state, state.reason)
        # it may have written its last state and ended in the meantime
        state = read_state(folder) or state
        if state.is_over:
            return _status(id, job, state, state.state, state.reason)
        return _without_supervisor(id, folder, job, state, life)
    except Unreadable as error:
        return JobStatus(id=id, state="UNKNOWN", outcome=outcome_of("UNKNOWN"), reason=str(error), source="local")


def _without_supervisor(id: JobId, folder: Path, job: Job, state: State, life: Life) -> JobStatus:
    """Return the state of a job whose supervisor has ended or is not visible, from the job's own records first."""
    if is_given_up(folder):
        return _status(id, job, state, "CANCELLED", "")
    if life is Life.ELSEWHERE:
        why = f"running {place_of(state)}; the job's processes are not visible from here"
        return _status(id, job, state, "UNKNOWN", why)
    if life is Life.GONE and script_lives(state):
        why = "the job's supervisor was killed; the script is being terminated"
        return _status(id, job, state, "COMPLETING", why)
    if (record := end_record(job)) is not None:
        status, ended = record
        state = replace(state, exit_status=status, ended=max(ended, state.started or 0))
        return _status(id, job, state, "FAILED" if status else "COMPLETED", "NonZeroExitCode" if status else "")
    if life is Life.REBOOTED:
        return _status(id, job, state, "NODE_FAIL", "the machine was restarted")
    why = "the job's supervisor was killed"
    if not state.supervisor.is_here:
        why = "the job's supervisor was killed, or its container stopped"
    if left := len(members(job.token)):
        noun = "process" if left == 1 else "processes"
        why += f"; `clusterrun cancel {job.id}` kills the {left} remaining {noun}"
    return _status(id, job, state, "NODE_FAIL", why)


def script_lives(state: State) -> bool:
    """Return whether the job's script is alive and visible from here."""
    seen = state.script_pid is not None and state.supervisor.is_here
    return seen and is_alive(state.script_pid or 0, state.script_start or 0)


def is_given_up(folder: Path) -> bool:
    """Return whether a cancel recorded the job as ended because its supervisor was gone."""
    return (folder / "cancelled.json").exists()


def place_of(state: State) -> str:
    """Return where a job runs that is not visible from this machine."""
    host = state.supervisor.host
    return f"on {host}" if host != os.uname().nodename else f"in another container on {host}"


def end_record(job: Job) -> tuple[int, int] | None:
    """Return the exit status of the script's last attempt and its end in epoch seconds, from its end record."""
    folder = Path(job.run_dir) / "attempts"
    for name in _attempts(folder, job.token):
        path = folder / name / "end.json"
        try:
            value = read_json(path)
            if value is not None and type(value.get("status")) is int:
                return value["status"], int(path.stat().st_mtime)
        except (Unreadable, OSError):
            continue
    return None


def _attempts(folder: Path, token: str) -> list[str]:
    """Return the names of a job's attempts, the newest first; none if they cannot be listed."""
    try:
        names = safe_files.list_names(folder)
    except OSError:
        return []
    found = []
    for name in names:
        first, *order = name.split(".")
        if first == token and all(part.isascii() and part.isdecimal() for part in order):
            found.append((tuple(map(int, order)), name))
    return [name for _, name in sorted(found, reverse=True)]


def _status(id: JobId, job: Job, state: State | None, name: str, reason: str) -> JobStatus:
    elapsed = state.elapsed if state else None
    if state is not None and name in ("RUNNING", "COMPLETING") and state.started_clock is not None:
        elapsed = max(0, int(clock() - state.started_clock))
    return JobStatus(
        id=id,
        state=name,
        outcome=outcome_of(name, state.exit_status if state else None),
        reason=reason,
        name=f"local.{job.token[:8]}",
        user=user_name(),
        nodes="local0" if job.nodes == 1 else f"local[0-{job.nodes - 1}]",
        node_count=job.nodes,
        elapsed=elapsed,
        time_limit=job.time_limit,
        submitted=job.submitted,
        started=state.started if state else None,
        ended=state.ended if state else None,
        exit_status=state.exit_status if state else None,
        restarts=0,
        script=job.script,
        source="local",
    )


@cache
def user_name() -> str:
    """Return this user's name, or number if there is no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
