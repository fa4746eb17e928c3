"""The processes of a local job: which belong to it, and how to end them. Standard library only."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from clusterrun.system.processes import Process, find_process, is_alive

TOKEN = "CLUSTERRUN_TOKEN"
"""The variable that every process of a job inherits."""
SUPERVISOR = "CLUSTERRUN_SUPERVISOR"
"""The variable of supervisors: if a job submits another, the search of the process tree stops at it."""

_PROC = Path("/proc")
_KILLING = 5.0  # seconds after which processes that do not end are left
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def environment() -> dict[str, str]:
    """Return the environment this process was started with, before Python's locale coercion."""
    pairs = (os.fsdecode(item).partition("=") for item in (_PROC / "self/environ").read_bytes().split(b"\0"))
    return {name: value for name, sign, value in pairs if sign and name}


def members(token: str, root: int | None = None) -> list[Process]:
    """Return the live processes of a job: those with its token, and the descendants of these and of ``root``.

    Descendants count even if they cleared their environment. Another job's supervisor and its processes do not count,
    nor do ``root`` and the caller.
    """
    processes = _all_processes()
    owners = {pid: _owner_of(pid) for pid in processes}
    marked = {pid for pid, owner in owners.items() if owner == token}
    roots = marked if root is None else marked | {root}
    found = marked | _descendants(roots, processes, lambda pid: owners[pid] in (token, None))
    return [processes[pid] for pid in sorted(found - {os.getpid(), root}) if not processes[pid].is_zombie]


def _all_processes() -> dict[int, Process]:
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    return {pid: process for pid in pids if (process := find_process(pid)) is not None}


def _owner_of(pid: int) -> str | None:
    """Return the token of a process's job, empty for a supervisor; None if its environment does not tell."""
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    values = dict(variable.partition(b"=")[::2] for variable in variables)
    if SUPERVISOR.encode() in values:
        return ""
    token = values.get(TOKEN.encode())
    return None if token is None else os.fsdecode(token)


def _descendants(roots: set[int], processes: dict[int, Process], belongs: Callable[[int], bool]) -> set[int]:
    """Return the children of processes, their children and so on, without those that belong elsewhere."""
    children: dict[int, list[int]] = defaultdict(list)
    for process in processes.values():
        children[process.parent].append(process.pid)
    found: set[int] = set()
    ahead = [*roots]
    while ahead:
        new = [pid for pid in children[ahead.pop()] if pid not in found and belongs(pid)]
        found.update(new)
        ahead += new
    return found


def send(pid: int, start: int, signum: int) -> bool:
    """Send a signal to the process of that pid and start time; return False if it has ended. Raises PermissionError."""
    if not is_alive(pid, start):
        return False
    try:
        os.kill(pid, signum)  # no pid is used again within microseconds
    except ProcessLookupError:
        return False
    return True


def end_members(token: str, root: int | None = None) -> tuple[int, int]:
    """Send KILL to the job's processes until none is left, for some seconds at most.

    Returns how many were signalled and how many are left: those that hang in the kernel, or are another user's.
    """
    signalled: set[tuple[int, int]] = set()
    denied: set[tuple[int, int]] = set()
    until = time.monotonic() + _KILLING
    while True:
        left = [(process.pid, process.start) for process in members(token, root)]
        left = [process for process in left if process not in denied]
        for process in left:
            try:
                if send(*process, signal.SIGKILL):
                    signalled.add(process)
            except PermissionError:
                denied.add(process)
        if not left or time.monotonic() >= until:
            return len(signalled), len(left) + len(denied)
        time.sleep(0.01)


def adopt_orphans() -> None:
    """Make this process adopt the orphans among its descendants, so that none leaves the process tree."""
    try:
        import ctypes  # queries need none

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        return  # a C library without prctl: the token alone finds the job's processes
