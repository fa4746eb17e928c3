"""The files of local jobs, and what they say about a job.

    <state>/local/L7/job.json         what was asked; written once, by submit
                     state.json       how it stands; written by the job's supervisor only
                     alive            locked by the supervisor while it lives (scheduler/mark.py)
                     cancelled.json   written by a cancel that found no supervisor to ask
                     supervisor.log   what the supervisor could not say elsewhere

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

from clusterrun.job import TERMINAL, JobId, JobStatus, outcome_of
from clusterrun.scheduler.local import mark
from clusterrun.scheduler.local.processes import Identity, Life, is_alive, members
from clusterrun.scheduler.local.safe_files import Unreadable, read_json, typed, write_json
from clusterrun.system import safe_files

START_LIMIT = 30.0
"""Seconds within which a supervisor writes its first state; a folder without one that is older is not a job."""
_ID = re.compile(r"L[1-9][0-9]{0,17}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What was asked: ``job.json``. Times are epoch seconds, limits seconds.

    The environment is not among it: it may hold secrets, and stays in memory.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How a job stands: ``state.json``, in Slurm's words. ``started_clock`` is seconds of :func:`clock`."""

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
    """Seconds since boot, sleep included: the one clock of this boot that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def is_id(text: str) -> bool:
    """Whether the text is the id of a local job: L1, L2, …"""
    return _ID.fullmatch(text) is not None


def check_root(root: Path) -> None:
    """Raise OSError where ``<state>/local`` is there and another user could have filled it."""
    with contextlib.suppress(FileNotFoundError):
        found = root.lstat()
        why = safe_files.why_untrusted(found, os.getuid()) if stat.S_ISDIR(found.st_mode) else "it is not a folder"
        if why:
            raise OSError(errno.EPERM, why, str(root))


def job_folders(root: Path) -> Iterator[Path]:
    """The jobs' folders below ``<state>/local``, oldest id first; raises OSError where it cannot be listed."""
    check_root(root)
    try:
        names = [entry.name for entry in root.iterdir() if is_id(entry.name)]
    except FileNotFoundError:
        return iter(())
    return (root / name for name in sorted(names, key=lambda name: int(name[1:])))


def read_job(folder: Path) -> Job | None:
    """What was asked, None where that was not written yet; raises Unreadable."""
    value = read_json(folder / "job.json")
    try:
        job = Job(**typed(Job, value)) if value is not None else None
    except TypeError as error:
        raise Unreadable("job.json cannot be understood") from error
    if job is not None and job.id != folder.name:
        raise Unreadable(f"job.json is that of {job.id}")
    return job


def write_job(folder: Path, job: Job) -> None:
    """Write what was asked; raises OSError."""
    write_json(folder / "job.json", {"version": 1} | asdict(job))


def read_state(folder: Path) -> State | None:
    """How the job stands by its supervisor's word, None before the first; raises Unreadable."""
    value = read_json(folder / "state.json")
    if value is None:
        return None
    try:
        known = typed(State, value | {"supervisor": identity_of(value["supervisor"])})
        return State(**known | {"devices": tuple(known.get("devices", ()))})
    except (TypeError, KeyError, AttributeError) as error:
        raise Unreadable("state.json cannot be understood") from error


def write_state(folder: Path, state: State) -> None:
    """Write how the job stands; raises OSError."""
    write_json(folder / "state.json", {"version": 1} | asdict(state))


def identity_of(value: Any) -> Identity:
    """The process that a file names; raises TypeError for anything else."""
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return Identity(**typed(Identity, value))


def is_starting(folder: Path) -> bool:
    """Whether a folder without a state may still become a job: it was made a moment ago."""
    try:
        return abs(time.time() - folder.stat().st_mtime) <= START_LIMIT
    except OSError:
        return False


def read_status(folder: Path) -> JobStatus | None:
    """How the job stands, its supervisor's life checked; None where the folder is not a job."""
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
        # it may have written its last word and left between our two looks
        state = read_state(folder) or state
        if state.is_over:
            return _status(id, job, state, state.state, state.reason)
        return _without_supervisor(id, folder, job, state, life)
    except Unreadable as error:
        return JobStatus(id=id, state="UNKNOWN", outcome=outcome_of("UNKNOWN"), reason=str(error), source="local")


def _without_supervisor(id: JobId, folder: Path, job: Job, state: State, life: Life) -> JobStatus:
    """What is left to say where nobody keeps the state any more: the job's own record first."""
    if is_given_up(folder):
        return _status(id, job, state, "CANCELLED", "")
    if life is Life.ELSEWHERE:
        return _status(id, job, state, "UNKNOWN", f"runs {place_of(state)}, which cannot be seen from here")
    if life is Life.GONE and script_lives(state):
        why = "the supervisor was killed; the script is ending"
        return _status(id, job, state, "COMPLETING", why)
    if (record := end_record(job)) is not None:
        status, ended = record
        state = replace(state, exit_status=status, ended=max(ended, state.started or 0))
        return _status(id, job, state, "FAILED" if status else "COMPLETED", "NonZeroExitCode" if status else "")
    if life is Life.REBOOTED:
        return _status(id, job, state, "NODE_FAIL", "the machine was restarted")
    why = "the supervisor was killed"
    if not state.supervisor.is_here:
        why = "the supervisor ended with its container, or was killed in it"
    if left := len(members(job.token)):
        why += f"; `clusterrun cancel {job.id}` ends the {left} processes it left"
    return _status(id, job, state, "NODE_FAIL", why)


def script_lives(state: State) -> bool:
    """Whether the job's script is seen to run from here."""
    seen = state.script_pid is not None and state.supervisor.is_here
    return seen and is_alive(state.script_pid or 0, state.script_start or 0)


def is_given_up(folder: Path) -> bool:
    """Whether a cancel counted the job as ended because nobody kept its state any more."""
    return (folder / "cancelled.json").exists()


def place_of(state: State) -> str:
    """Where a job runs that cannot be seen from here."""
    host = state.supervisor.host
    return f"on {host}" if host != os.uname().nodename else f"in another container on {host}"


def end_record(job: Job) -> tuple[int, int] | None:
    """The exit status by which the script's last launch ended, and when (epoch seconds), by its own record."""
    found = []
    for path in (Path(job.run_dir) / "attempts").glob(f"{job.token}.*/end.json"):
        order = path.parent.name.removeprefix(job.token).split(".")[1:]
        if all(part.isdigit() for part in order):
            found.append((tuple(int(part) for part in order), path))
    for _, path in sorted(found, reverse=True):
        try:
            value = read_json(path)
            if value is not None and type(value.get("status")) is int:
                return value["status"], int(path.stat().st_mtime)
        except (Unreadable, OSError):
            continue
    return None


def _status(id: JobId, job: Job, state: State | None, word: str, reason: str) -> JobStatus:
    elapsed = state.elapsed if state else None
    if state is not None and word in ("RUNNING", "COMPLETING") and state.started_clock is not None:
        elapsed = max(0, int(clock() - state.started_clock))
    return JobStatus(
        id=id,
        state=word,
        outcome=outcome_of(word, state.exit_status if state else None),
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
    """The user whose jobs these are; a number where the system has no name for it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
