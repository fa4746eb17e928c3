"""The processes of a local job, read from /proc: who lives, who belongs to the job, and how to end them.

A process is named by its pid together with its start time (field 22 of ``/proc/PID/stat``, clock ticks since boot),
so a reused pid is never taken for the one that was meant. Standard library only: the supervisor imports this.
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

TOKEN = "CLUSTERRUN_TOKEN"
"""The variable that every process of a job inherits."""
SUPERVISOR = "CLUSTERRUN_SUPERVISOR"
"""The variable of supervisors: where a job submits another, the walk down the process tree stops at it."""

_PROC = Path("/proc")
_KILLING = 5.0  # seconds after which processes that do not go are left
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Life(Enum):
    """What can be said from here about a process that was recorded somewhere."""

    ALIVE = "alive"
    GONE = "gone"
    REBOOTED = "the machine was restarted"
    ELSEWHERE = "another machine or container: not visible from here"


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it; ``start`` is clock ticks since boot."""

    pid: int
    start: int
    parent: int
    is_zombie: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """One process among all machines: pid and start time mean something in this boot and pid namespace only."""

    pid: int
    start: int
    boot: str
    host: str
    namespace: str

    @classmethod
    def mine(cls) -> Identity:
        """The identity of the calling process."""
        pid = os.getpid()
        process = look(pid)
        return cls(pid, process.start if process else 0, boot_id(), host_name(), _namespace())

    @property
    def is_here(self) -> bool:
        """Whether its pid means something here: the same boot and pid namespace."""
        return self.boot == boot_id() and self.namespace == _namespace()

    def life(self, alive: Path) -> Life:
        """Whether that process still runs, as far as that is known here; ``alive`` is the file it keeps locked."""
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


def boot_id() -> str:
    """The kernel's name for this boot."""
    return (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()


def host_name() -> str:
    """This machine's name."""
    return os.uname().nodename


def _namespace() -> str:
    return str((_PROC / "self/ns/pid").readlink())


def look(pid: int) -> Process | None:
    """The process of that pid, or None where there is none."""
    try:
        data = (_PROC / str(pid) / "stat").read_bytes()
        # the name in parentheses may hold anything, so count from its last closing one: state is field 3
        fields = data[data.rindex(b")") + 2 :].split()
        return Process(pid, int(fields[19]), int(fields[1]), fields[0] in (b"Z", b"X"))
    except (OSError, ValueError, IndexError):
        return None


def is_alive(pid: int, start: int) -> bool:
    """Whether the process of that pid and start time runs; one that only waits to be reaped does not."""
    process = look(pid)
    return process is not None and process.start == start and not process.is_zombie


def environment() -> dict[str, str]:
    """The environment this process was started with, before Python's locale coercion added to it."""
    pairs = (os.fsdecode(item).partition("=") for item in (_PROC / "self/environ").read_bytes().split(b"\0"))
    return {name: value for name, sign, value in pairs if sign and name}


def send(process: Process, signum: int) -> bool:
    """Send a signal to that very process; False where it is gone. Raises PermissionError."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        handle = -1  # a kernel before 5.3: the moment between look and kill stays open
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
    """The live processes of a job: those that carry its token, and what descends from them or from ``root``.

    Descent finds a process that cleared its environment; another job's supervisor and its processes are not
    the job's own, wherever they hang in the tree. Neither ``root`` nor the caller is among the answer.
    """
    processes = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (process := look(int(entry.name))) is not None:
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
    """True for the token, False for another job's process or a supervisor, None where the environment does not say."""
    try:
        names = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    wanted = f"{TOKEN}={token}".encode()
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
    """KILL the job's processes until a fresh look finds none, for some seconds at most.

    Returns how many were signalled and how many are left: one that hangs in the kernel, or is another user's.
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
    """Make this process the parent of its descendants' orphans, so that none leaves the tree."""
    try:
        import ctypes  # queries need none

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        return  # a C library without prctl: the token alone finds the job's processes
