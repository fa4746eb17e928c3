"""Processes of this machine, from /proc: which are alive, and which one submits.

A process is named by its pid together with its start time (field 22 of ``/proc/PID/stat``, clock ticks since boot),
so a reused pid is never mistaken. Standard library only.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class Process(NamedTuple):
    """A process as /proc shows it; ``start`` is clock ticks since boot.

    A dead main thread is a zombie too, while the other threads still hold the process's files, ports and GPUs: such a
    process counts as running.
    """

    pid: int
    start: int
    parent: int
    is_zombie: bool


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()


def clock() -> float:
    """Return the seconds since this boot, sleep included: a clock that nobody can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def host_name() -> str:
    """Return this machine's name."""
    return os.uname().nodename


def find_process(pid: int) -> Process | None:
    """Return the process with that pid, or None."""
    try:
        data = (_PROC / str(pid) / "stat").read_bytes()
        # the name in parentheses may contain anything, so count from the last ")": state is field 3
        fields = data[data.rindex(b")") + 2 :].split()
        threads = int(fields[17])
        return Process(pid, int(fields[19]), int(fields[1]), fields[0] in (b"Z", b"X") and threads <= 1)
    except (OSError, ValueError, IndexError):
        return None


def is_alive(pid: int, start: int) -> bool:
    """Return whether the process of that pid and start time is running; a zombie is not."""
    process = find_process(pid)
    return process is not None and process.start == start and not process.is_zombie


def submitter() -> tuple[str, int, int]:
    """Return this process as a record names it: host, pid, start time in clock ticks since boot."""
    me = find_process(os.getpid())
    return os.uname().nodename, os.getpid(), me.start if me else 0


def submitter_is_alive(who: tuple[str, int, int]) -> bool:
    """Return whether the submitting process is alive on this host."""
    host, pid, start = who
    return host == os.uname().nodename and start != 0 and is_alive(pid, start)
