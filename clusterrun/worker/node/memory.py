"""How much memory a rank, and the whole job on this node, hold at most. Standard library only."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

GIB = 2**30
_JOB = re.compile(r"^0::(/.*?/job_\d+)(?:/|$)", re.MULTILINE)  # Slurm's cgroup (version 2) of a job
_CGROUPS = Path("/sys/fs/cgroup")


class MemoryPeaks:
    """The most memory seen so far in GiB: of this rank with the processes that it started, and of the job on its node.

    The cache of files and shared pages do not count: the kernel takes them back before a limit of memory ends a job.
    """

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = _CGROUPS) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._peaks: dict[str, float] = {}

    def look(self, process: int) -> dict[str, float]:
        """Look at what they hold now, and return the peaks by their names in a rank's record."""
        held = {"memory_peak_gib": self._held(process), "node_memory_peak_gib": self._held_by_job()}
        for name, size in held.items():
            if size > 0:
                self._peaks[name] = max(self._peaks.get(name, 0), round(size / GIB, 3))
        return self._peaks

    def _held(self, process: int) -> int:
        """Return the bytes of a process and its descendants; pages that a fork shares count in each."""
        pages, processes = 0, [process]
        for pid in processes:  # it grows meanwhile
            with suppress(OSError, ValueError):
                _, resident, shared = (self._proc / str(pid) / "statm").read_text().split()[:3]
                pages += int(resident) - int(shared)
                processes += map(int, (self._proc / f"{pid}/task/{pid}/children").read_text().split())
        return pages * os.sysconf("SC_PAGESIZE")

    def _held_by_job(self) -> int:
        """Return the bytes of all processes of the job on this node by its cgroup, 0 without one."""
        with suppress(OSError, ValueError, KeyError):
            if job := _JOB.search((self._proc / "self/cgroup").read_text()):
                text = (self._cgroups / job[1].lstrip("/") / "memory.stat").read_text()
                sizes = dict(line.split() for line in text.splitlines())
                return int(sizes["anon"]) + int(sizes["shmem"])
        return 0
