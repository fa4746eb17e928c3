"""How much memory a rank, and the whole job on this node, hold at most. Standard library only."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

GIB = 2**30
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_OWN = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)  # not the cache of files
_JOB = re.compile(r"^0::/(.*?/job_\d+)(?:/|$)", re.MULTILINE)  # Slurm's cgroup (version 2) of a job


class MemoryPeaks:
    """The most memory seen so far in GiB: of this rank with the processes that it started, and of the job on its node.

    The cache of files does not count: the kernel takes it back before a limit of memory ends a job. It cannot take back
    shared memory, in which loaders of data hold their batches.
    """

    def __init__(self) -> None:
        self._peaks: dict[str, float] = {}

    def look(self, process: int) -> dict[str, float]:
        """Look at what they hold now, and return the peaks by their names in a rank's record."""
        for name, size in (("memory_peak_gib", held_by(process)), ("node_memory_peak_gib", held_by_job())):
            if size > 0:
                self._peaks[name] = max(self._peaks.get(name, 0), round(size / GIB, 3))
        return self._peaks


def held_by(process: int) -> int:
    """Return the bytes of a process and its descendants; pages that several of them share count in each."""
    size, processes = 0, [process]
    for pid in processes:  # it grows meanwhile
        with suppress(OSError, ValueError):
            size += 1024 * sum(map(int, _OWN.findall((PROC / f"{pid}/status").read_text(errors="replace"))))
            processes += map(int, (PROC / f"{pid}/task/{pid}/children").read_text().split())
    return size


def held_by_job() -> int:
    """Return the bytes of all processes of the job on this node by its cgroup, 0 without one."""
    with suppress(OSError, ValueError, KeyError):
        if job := _JOB.search((PROC / "self/cgroup").read_text()):
            sizes = dict(line.split() for line in (CGROUPS / job[1] / "memory.stat").read_text().splitlines())
            return int(sizes["anon"]) + int(sizes["shmem"])
    return 0
