"""The files of local jobs.

    <state>/local/L7/job.json         the request; written by submit, and locked while the job's supervisor is alive
                     state.json       the state; written by the supervisor, or by a cancel that finds none
                     supervisor.log   errors of the supervisor

A folder appears by one rename, with its request already locked. The submitter passes the open file to the supervisor,
and the kernel releases the lock when the last of them ends, however it ends. So a job without a state is starting
while its request is locked, and never ran if it is not. A lock holds on one machine (ADR 32): the state names it, and
what another machine wrote is not judged. Folders are 0700 and files 0600. Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from clusterrun.base.decode import Damaged, build, parse_object
from clusterrun.base.job import TERMINAL, JobId, JobStatus, log_paths, outcome_of
from clusterrun.run_folder import atomic, ends, launches, safe_files
from clusterrun.scheduler.local.processes import members
from clusterrun.scheduler.slurm.hostlist import fold
from clusterrun.system.processes import boot_id, clock, host_name, is_alive

_ID = re.compile(r"L[1-9][0-9]{0,17}", re.ASCII)
_LARGEST = 1024 * 1024  # bytes of a file; the largest seen has 2 KiB
Record = TypeVar("Record")


class Unreadable(Exception):
    """A file of a job exists and is not valid; the message names it and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job's request, as in ``job.json``. Times are epoch seconds, limits seconds.

    The environment is not part of it: it may contain secrets, and stays in memory.
    """

    token: str
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
    in_job: str = ""  # the Slurm job that it runs in; the rest is what it may use there
    job_nodes: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()  # one for each GPU of a node: 123/node1/0, 123/node1/1; Slurm chooses the device
    cpus_per_task: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A job's state, as in ``state.json``, with Slurm's names.

    ``supervisor`` and ``script`` are processes: pid and start time. ``started_clock`` is seconds of ``clock``.
    """

    supervisor: tuple[int, int]
    host: str
    boot: str
    state: str = "PENDING"
    reason: str = ""
    started: int | None = None
    started_clock: float | None = None
    ended: int | None = None
    elapsed: int | None = None
    exit_status: int | None = None
    script: tuple[int, int] = (0, 0)
    devices: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL


STARTING = State(supervisor=(0, 0), host="", boot="", reason="starting")
"""The state of a job whose supervisor has not written one yet."""


# -- folders ---------------------------------------------------------------------------------------------------------


def is_id(text: str) -> bool:
    """Return whether the text is the id of a local job: L1, L2, …"""
    return _ID.fullmatch(text) is not None


def number_of(folder: Path) -> int:
    """Return the number of a job: jobs are numbered as they arrive."""
    return int(folder.name[1:])


def check_root(root: Path) -> None:
    """Raise OSError if ``<state>/local`` exists and another user could have written to it."""
    try:
        info = root.lstat()
    except FileNotFoundError:
        return
    why = safe_files.why_untrusted(info, os.getuid()) if stat.S_ISDIR(info.st_mode) else "not a folder"
    if why:
        raise OSError(errno.EPERM, why, str(root))


def job_folders(root: Path) -> Iterator[Path]:
    """Return the jobs' folders below ``<state>/local``, oldest id first. Raises OSError if it cannot be listed."""
    check_root(root)
    try:
        folders = [root / entry.name for entry in root.iterdir() if is_id(entry.name)]
    except FileNotFoundError:
        return iter(())
    return iter(sorted(folders, key=number_of))


def create(root: Path, job: Job) -> tuple[Path, BinaryIO]:
    """Create the folder of the next free id; return it, and its request: open and locked. Raises OSError.

    An id that has a log is not free: the state folder may have been lost.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    newest = max(map(number_of, job_folders(root)), default=0)
    draft = Path(tempfile.mkdtemp(prefix=".new-", dir=root))
    try:
        request = _write_request(draft / "job.json", job)
        number = newest + 1
        while _has_log(f"L{number}", job) or not _is_moved(draft, root / f"L{number}"):
            number += 1
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return root / f"L{number}", request


def _write_request(path: Path, job: Job) -> BinaryIO:
    request = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w+b")
    try:
        fcntl.flock(request, fcntl.LOCK_EX)
    except OSError as error:
        raise OSError(error.errno, "the file system has no locks", str(path)) from error
    request.write(_encode(job))
    request.flush()
    os.fsync(request.fileno())
    return request


def _has_log(id: str, job: Job) -> bool:
    return any(os.path.lexists(log) for log in log_paths(Path(job.logs), JobId(id)))


def _is_moved(draft: Path, folder: Path) -> bool:
    """Give a complete folder its name; return False if another submitter has taken it."""
    try:
        draft.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return False
        raise
    return True


# -- records ---------------------------------------------------------------------------------------------------------


def read_job(folder: Path) -> Job | None:
    """Return a job's request, None if there is none. Raises Unreadable."""
    return _read(Job, folder / "job.json")


def read_state(folder: Path) -> State | None:
    """Return a job's state, None if it never ran. Raises Unreadable.

    If the supervisor is gone, the state is judged by what the job left; see :func:`_without_supervisor`.
    """
    job = read_job(folder)
    return _judge(folder, job) if job is not None else None


def _judge(folder: Path, job: Job) -> State | None:
    supervised = is_supervised(folder)  # before the state is read: a supervisor that is gone has written its last one
    state = _read(State, folder / "state.json")
    if state is None:
        return STARTING if supervised else None
    if state.is_over:
        return state
    if is_elsewhere(state):
        why = f"running on {state.host}; the job's processes are not visible from here"
        return replace(state, state="UNKNOWN", reason=why)
    return state if supervised else _without_supervisor(folder.name, job, state)


def read_status(folder: Path) -> JobStatus | None:
    """Return a job's state as every scheduler reports it; None if the folder is not a job that ran."""
    id = JobId.parse(folder.name)
    try:
        job = read_job(folder)
        state = _judge(folder, job) if job is not None else None
    except Unreadable as error:
        return JobStatus(id=id, state="UNKNOWN", outcome=outcome_of("UNKNOWN"), reason=str(error), source="local")
    return _status(id, job, state) if job is not None and state is not None else None


def write_state(folder: Path, state: State) -> None:
    """Write a job's state. Raises OSError."""
    atomic.replace(folder / "state.json", _encode(state))


def _encode(record: Any) -> bytes:
    # ASCII, so that names that are not UTF-8 survive
    return json.dumps({"version": 1} | asdict(record), indent=1).encode("ascii") + b"\n"


def _read(kind: type[Record], path: Path) -> Record | None:
    if path.parent.is_symlink():
        raise Unreadable(f"{path.parent} is a symbolic link")
    try:
        data = parse_object(safe_files.read_bytes(path, _LARGEST, owner=os.getuid()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, Damaged) as error:
        raise Unreadable(f"{path.name} cannot be read") from error
    try:
        return build(kind, data)
    except Damaged as error:
        raise Unreadable(f"{path.name} is damaged") from error


# -- what a job's files and processes say ----------------------------------------------------------------------------


def is_supervised(folder: Path) -> bool:
    """Return whether the job's supervisor is alive, or its submitter is about to start it. Raises Unreadable."""
    try:
        with safe_files.open_file(folder / "job.json", owner=os.getuid()) as request:
            fcntl.flock(request, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Unreadable("job.json cannot be read") from error
    return False


def is_elsewhere(state: State) -> bool:
    """Return whether another machine wrote the state. Containers of one machine have its boot, and see its locks."""
    return state.boot != boot_id() and state.host != host_name()


def _without_supervisor(id: str, job: Job, state: State) -> State:
    """Return the state of a job of this machine whose supervisor did not live to write the end."""
    is_this_boot = state.boot == boot_id()
    if is_this_boot and is_alive(*state.script):
        then = f"`clusterrun cancel {id}` ends the script" if job.in_job else "the script is being terminated"
        why = f"the job's supervisor was killed; {then}"
        return replace(state, state="COMPLETING", reason=why)
    end = end_record(job)
    if end is not None:
        return _ended_by_itself(state, *end)
    if not is_this_boot:
        return replace(state, state="NODE_FAIL", reason="the machine was restarted")
    why = "the job's supervisor was killed"
    if job.in_job:
        why += f"; `clusterrun cancel {id}` ends what is left of it in job {job.in_job}"
    left = len(members(job.token))
    if left:
        why += f"; `clusterrun cancel {id}` kills the {left} remaining {'process' if left == 1 else 'processes'}"
    return replace(state, state="NODE_FAIL", reason=why)


def _ended_by_itself(state: State, exit_status: int, ended: int) -> State:
    ended = max(ended, state.started or 0)
    name, reason = ("FAILED", "NonZeroExitCode") if exit_status else ("COMPLETED", "")
    return replace(state, state=name, reason=reason, exit_status=exit_status, ended=ended)


def end_record(job: Job) -> tuple[int, int] | None:
    """Return the exit status of the script's last attempt and its end in epoch seconds, from its end record."""
    run_dir = Path(job.run_dir)
    for attempt in reversed(launches.folders(run_dir, job.token) if safe_files.is_mine(run_dir) else []):
        end = ends.load_job_end(attempt)
        if end is not None and end.status is not None:
            return end.status, int(end.time or 0)
    return None


def _status(id: JobId, job: Job, state: State) -> JobStatus:
    return JobStatus(
        id=id,
        state=state.state,
        outcome=outcome_of(state.state, state.exit_status),
        reason=state.reason,
        name=f"local.{job.token[:8]}",
        user=safe_files.user_name(os.getuid()),
        nodes=_shown_nodes(job, state),
        node_count=job.nodes,
        elapsed=_elapsed(state),
        time_limit=job.time_limit,
        submitted=job.submitted,
        started=state.started,
        ended=state.ended,
        exit_status=state.exit_status,
        restarts=0,
        number=job.in_job,
        script=job.script,
        source="local",
    )


def nodes_in_job(job: Job, state: State) -> tuple[str, ...]:
    """Return the nodes of a Slurm job that a run in it uses: those of its slots, or without GPUs the first ones."""
    nodes = dict.fromkeys(slot.split("/")[1] for slot in state.devices)
    return tuple(nodes) or job.job_nodes[: job.nodes]


def _shown_nodes(job: Job, state: State) -> str:
    if job.in_job:
        return fold(nodes_in_job(job, state)) if state.started is not None else ""
    return "local0" if job.nodes == 1 else f"local[0-{job.nodes - 1}]"


def _elapsed(state: State) -> int | None:
    """Return the seconds that a job has run; for a running one, until now."""
    if state.state in ("RUNNING", "COMPLETING") and state.started_clock is not None:
        return max(0, int(clock() - state.started_clock))
    return state.elapsed
