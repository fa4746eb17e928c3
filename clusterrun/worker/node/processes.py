"""Whose the processes of this node are, of which job, and what they have open. Standard library only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
OF_THE_MACHINE = "pid:[4026531836]"  # the kernel's number (PROC_PID_INIT_INO) of the machine's own process ids
EXITING = 0x4  # PF_EXITING of the kernel
FLAGS, STARTED = 6, 19  # fields of /proc/PID/stat after the name
UID = re.compile(r"^Uid:\s+(\d+)", re.MULTILINE | re.ASCII)
CGROUP = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE | re.ASCII)  # Slurm's, version 1 and 2
STEP = re.compile(rb"slurmstepd: \[(\d+)\.")


class Process(NamedTuple):
    """A process: ``name`` is printable, ``age`` in seconds, ``job`` its Slurm job, empty if that is unknown."""

    pid: int
    name: str
    uid: int
    age: float
    job: str
    is_ours: bool
    is_ending: bool


def are_all_visible() -> bool:
    """Return whether this process sees the machine's process ids: nvidia-smi prints these in a container, too.

    A container's own ids are other processes (https://github.com/NVIDIA/nvidia-docker/issues/1483).
    """
    with suppress(OSError):
        return os.readlink(PROC / "self/ns/pid") == OF_THE_MACHINE
    return False


def look_at(pid: int) -> Process | None:
    """Return what /proc shows of a process, None if that is nothing: it has ended, or is another user's (hidepid)."""
    folder = PROC / str(pid)
    try:
        before, _, after = _text(folder / "stat").rpartition(")")
        fields, name = after.split(), before.partition("(")[2]
        is_ending = fields[0] in "ZX" or bool(int(fields[FLAGS]) & EXITING)
        age = float(_text(PROC / "uptime").split()[0]) - int(fields[STARTED]) / os.sysconf("SC_CLK_TCK")
        uid = int(UID.findall(_text(folder / "status"))[0])
    except (OSError, ValueError, IndexError):
        return None
    jobs = _jobs(folder)
    own = os.environ.get("SLURM_JOB_ID") or os.environ.get("CLUSTERRUN_JOB_ID")  # without Slurm
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    return Process(pid, name, uid, max(0.0, age), jobs[0], own in jobs, is_ending)


def is_hidden(pid: int) -> bool:
    """Return whether a process that /proc does not show runs, as another user's."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def of_this_user() -> Iterator[int]:
    """Yield the ids of this user's processes."""
    for name in filter(str.isdecimal, os.listdir(PROC)):
        with suppress(OSError):  # it has ended
            if (PROC / name).stat().st_uid == os.getuid():
                yield int(name)


def opened_by(pid: int) -> Iterator[str]:
    """Yield what the descriptors of a process are links to, and the files that it has mapped."""
    folder = PROC / str(pid)
    with suppress(OSError):
        for name in os.listdir(folder / "fd"):
            with suppress(OSError):  # closed meanwhile
                yield os.readlink(folder / "fd" / name)
        yield from (line[line.index("/") :] for line in _text(folder / "maps").splitlines() if "/" in line)


def jobs_of_node() -> set[str]:
    """Return the ids of the jobs that Slurm runs on this node; none if /proc hides root's processes."""
    found: set[str] = set()
    for name in filter(str.isdecimal, os.listdir(PROC)):
        with suppress(OSError):
            found |= {job.decode() for job in STEP.findall((PROC / name / "cmdline").read_bytes()[:100])}
    return found


def _jobs(folder: Path) -> tuple[str, ...]:
    """Return the jobs that a process is of: Slurm's, empty if unknown, then what its environment says, if readable."""
    jobs = list[str]()
    with suppress(OSError):
        jobs += CGROUP.findall(_text(folder / "cgroup"))[:1]
    with suppress(OSError):
        variables = dict(entry.partition("=")[::2] for entry in _text(folder / "environ").split("\0"))
        jobs += filter(None, (variables.get("SLURM_JOB_ID"), variables.get("CLUSTERRUN_JOB_ID")))
    return tuple(jobs) or ("",)


def _text(path: Path) -> str:
    return path.read_text(errors="replace")
