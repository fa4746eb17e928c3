"""What processes of this node do, seen from outside: stopped, dead, or waiting in the kernel. Standard library only.

Run by path on a node, as a small step beside the one that hangs: `python probe.py PID…`. It prints a JSON object that
maps each pid to its state. Only processes with this job's token in their environment count: a pid may be used again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

STOPPED, TRACED, DEAD = "stopped (SIGSTOP)", "stopped by a debugger", "dead"
NOT_RUNNING = (STOPPED, TRACED, DEAD)


def state(pid: int, token: str, proc: Path = Path("/proc")) -> str:
    """Return what a process does, in words for `rank 3 is …`; one that is gone, or of another job, is DEAD."""
    folder = proc / str(pid)
    try:
        letter = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return DEAD
    if letter in "ZX":
        return DEAD
    if not _is_ours(folder, token):
        return DEAD
    if letter in "Tt":
        return STOPPED if letter == "T" else TRACED
    place = _text(folder / "wchan").strip("0")
    if letter == "R":
        return "running"
    uninterruptible = ", in uninterruptible sleep" if letter == "D" else ""
    return f"waiting in the kernel{f' ({place})' if place else ''}{uninterruptible}"


def states(pids: Iterable[int], token: str) -> dict[int, str]:
    """Return the state of each process."""
    return {pid: state(pid, token) for pid in pids}


def children() -> list[int]:
    """Return the process ids of this process's children."""
    return _children_by_parent(Path("/proc")).get(os.getpid(), [])


def descendants(process: int, proc: Path = Path("/proc")) -> list[int]:
    """Return the process ids of a process's children, their children, and so on."""
    by_parent = _children_by_parent(proc)
    found = [process]
    for one in found:  # it grows meanwhile
        found += by_parent.get(one, [])
    return found[1:]


def _children_by_parent(proc: Path) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir(proc)):  # Path.glob raises when a process ends meanwhile (ESRCH)
        with suppress(OSError, ValueError, IndexError):
            parent = int((proc / name / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            found.setdefault(parent, []).append(int(name))
    return found


def _is_ours(folder: Path, token: str) -> bool:
    try:
        return f"CLUSTERRUN_TOKEN={token}".encode() in (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return True  # not readable: its pid is all there is


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


if __name__ == "__main__":
    print(json.dumps(states(map(int, sys.argv[1:]), os.environ.get("CLUSTERRUN_TOKEN", ""))))
