"""The processes of a local job, from /proc: which belong to the job, and how to end them.

Standard library only: the supervisor imports this.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from clusterrun.scheduler.local import mark
from clusterrun.system.processes import Process, boot_id, find_process, host_name, is_alive

TOKEN = "CLUSTERRUN_TOKEN"
"""The variable that every process of a job inherits."""
SUPERVISOR = "CLUSTERRUN_SUPERVISOR"
"""The variable of supervisors: if a job submits another, the search of the process tree stops at it."""

_PROC = Path("/proc")
_KILLING = 5.0  # seconds after which processes that do not end are left
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Life(Enum):
    """Whether a recorded process is alive, as far as this process can see."""

    ALIVE = "alive"
    GONE = "gone"
    REBOOTED = "the machine was restarted"
    ELSEWHERE = "another machine or container: not visible from this machine"


@dataclass(frozen=True, slots=True)
class Identity:
    """A process on any machine. Its pid and start time are valid only in its boot and pid namespace."""

    pid: int
    start: int
    boot: str
    host: str
    namespace: str

    @classmethod
    def mine(cls) -> Identity:
        """Return the identity of the calling process."""
        pid = os.getpid()
        process = find_process(pid)
        return cls(pid, process.start if process else 0, boot_id(), host_name(), _namespace())

    @property
    def is_here(self) -> bool:
        """Whether the process is in this boot and pid namespace, so that its pid is valid here."""
        return self.boot == boot_id() and self.namespace == _namespace()

    def life(self, alive: Path) -> Life:
        """Return whether the process is alive, as far as is known here; ``alive`` is the file that it keeps locked."""
        held = mark.is_held(alive)
        if held:
            return Life.ALIVE
        if self.boot != boot_id():
            return Life.REBOOTED if self.host == host_name() else Life.ELSEWHERE
        if held is False:
            return Life.GONE
        if not self.is_here:
            return Life.ELSEWHERE
        return Life.ALIVE if is_alive(self.pid, self.start) else Life.GONE


def _namespace() -> str:
    return str((_PROC / "self/ns/pid").readlink())


def environment() -> dict[str, str]:
    """Return the environment this process was started with, before Python's locale coercion."""
    pairs = (os.fsdecode(item).partition("=") for item in (_PROC / "self/environ").read_bytes().split(b"\0"))
    return {name: value for name, sign, value in pairs if sign and name}


def send(process: Process, signum: int) -> bool:
    """Send a signal to exactly that process; return False if it has ended. Raises PermissionError."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        handle = -1  # a kernel before 5.3: the pid may be reused between the check and the signal
    try:
        if not is_alive(process.pid, process.start):
            return False
        if handle < 0:
            os.kill(process.pid, signum)
        else:
            signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def members(token: str, root: int | None = None) -> list[Process]:
    """Return the live processes of a job: those with its token, and the descendants of these and of ``root``.

    Descendants count even if they cleared their environment. Another job's supervisor and its processes do not count,
    nor do ``root`` and the caller.
    """
    processes = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (process := find_process(int(entry.name))) is not None:
            processes[process.pid] = process
    owned = {pid: _belongs(pid, token) for pid in processes}
    children: dict[int, list[int]] = defaultdict(list)
    for process in processes.values():
        children[process.parent].append(process.pid)
    found: set[int] = set()
    queue = [pid for pid, mine in owned.items() if mine]
    if root is not None:
        queue += [child for child in children[root] if owned[child] is not False]
    while queue:
        pid = queue.pop()
        if pid not in found:
            found.add(pid)
            queue += [child for child in children[pid] if owned[child] is not False]
    found -= {os.getpid(), root}
    return [processes[pid] for pid in sorted(found) if not processes[pid].is_zombie]


def _belongs(pid: int, token: str) -> bool | None:
    """Return True for the token, False for another job's process or a supervisor, None if unknown."""
    try:
        names = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    wanted = f"{TOKEN}={token}".encode("utf-8", "surrogateescape")
    if any(item.startswith(f"{SUPERVISOR}=".encode()) for item in names):
        return False
    tokens = [item for item in names if item.startswith(f"{TOKEN}=".encode())]
    return wanted in tokens if tokens else None


def end_members(
    token: str,
    root: int | None = None,
    *,
    reap: Callable[[], None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[int, int]:
    """Send KILL to the job's processes until none is left, for some seconds at most.

    Returns how many were signalled and how many are left: those that hang in the kernel, or are another user's.
    """
    signalled: set[tuple[int, int]] = set()
    denied: set[tuple[int, int]] = set()
    until = time.monotonic() + _KILLING
    while True:
        reap()
        left = [p for p in members(token, root) if (p.pid, p.start) not in denied]
        for process in left:
            try:
                if send(process, signal.SIGKILL):
                    signalled.add((process.pid, process.start))
            except PermissionError:
                denied.add((process.pid, process.start))
        if not left or time.monotonic() >= until:
            return len(signalled), len(left) + len(denied)
        sleep(0.01)


def adopt_orphans() -> None:
    """Make this process adopt the orphans among its descendants, so that none leaves the process tree."""
    try:
        import ctypes  # queries need none

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        return  # a C library without prctl: the token alone finds the job's processes
