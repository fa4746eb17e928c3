"""Ends an allocation whose supervisor is gone, from one of its ranks. Standard library only.

With --no-kill (`--spare-nodes`) Slurm keeps a job whose first node is lost, and with it the supervisor, until its time
limit: nothing runs in it and nobody ends it. So the ranks read the supervisor's heartbeat, `supervisor.alive` in the
attempt's folder. One of them requeues the job, or cancels it where that is refused.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from . import epoch

ALIVE = "supervisor.alive"
CLAIM = "abandoned"
INTERVALS = 30  # heartbeats of a rank, without one of the supervisor
COMMAND_S = 30.0


class SupervisorWatch:
    """Notices in a rank that the supervisor of its job is gone."""

    def __init__(self, folder: Path, interval: float, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._limit = INTERVALS * interval
        self._job = environ.get("SLURM_JOB_ID", "") if environ.get("CLUSTERRUN_SPARE_NODES") else ""
        self._seen: tuple[bytes, float] | None = None

    def look(self) -> None:
        """Requeue or cancel the job if its supervisor has been silent for too long; raises OSError, Superseded.

        Call it after this rank has used the run's folder: the file system works.
        """
        if not self._job:
            return
        now, beat = time.monotonic(), (self._folder / ALIVE).read_bytes()
        if self._seen is None or self._seen[0] != beat:
            self._seen = beat, now
        elif now - self._seen[1] > self._limit:
            self._seen = beat, now
            epoch.check()  # not if the job has been started again already
            os.close(os.open(self._folder / CLAIM, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
            if not end_job(self._job, f"the job's first node has not written for {self._limit:.0f} s"):
                (self._folder / CLAIM).unlink()  # perhaps only this node is cut off, so another rank tries


def end_job(job: str, reason: str) -> bool:
    """Requeue a job, or cancel it if Slurm refuses that; return whether one of them was done."""
    for command, done in ((["scontrol", "requeue", job], "requeued"), (["scancel", job], "cancelled")):
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S)
            print(f"clusterrun: {reason}: job {job} was {done}", file=sys.stderr, flush=True)
            return True
    return False
