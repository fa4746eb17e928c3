"""Ends what is left of a job: an allocation without a supervisor, a rank of an older attempt. Standard library only.

With --no-kill (`--spare-nodes`) Slurm keeps a job whose first node is lost, and with it the supervisor, until its time
limit: nothing runs in it and nobody ends it. So the ranks read the supervisor's heartbeat, `supervisor.alive` in the
attempt's folder. One of them requeues the job, or cancels it where that is refused. A rank whose run has been started
again elsewhere is killed, for its user's code does not check the attempt number, as built-in tasks do.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ...run_folder import attempt_number
from ...run_folder.claims import JobIdentity
from ..node import probe
from ..node.log import say

PRINT_S = 1.0  # a pipe that nobody reads must not keep this process alive
ALIVE = "supervisor.alive"
CLAIM = "abandoned"
INTERVALS = 30  # heartbeats of a rank, without one of the supervisor
CLAIM_S = 120.0  # a claim is older only if its rank was killed


class SupervisorWatch:
    """Notices in a rank that the supervisor of its job is gone."""

    def __init__(self, folder: Path, interval: float, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._limit = INTERVALS * interval
        has_spares = environ.get("SLURM_JOB_ID") and environ.get("CLUSTERRUN_SPARE_NODES")
        self._job = JobIdentity.resolve(environ).job_id if has_spares else ""
        self._restart = int(environ.get("SLURM_RESTART_COUNT") or 0)
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
            attempt_number.check()  # not if the job has been started again already
            self._claim()
            if not end_job(self._job, self._restart, f"no heartbeat from the job's first node for {self._limit:.0f} s"):
                (self._folder / CLAIM).unlink()  # perhaps only this node is cut off: another rank tries first
            self._seen = beat, time.monotonic()

    def _claim(self) -> None:
        """Create the claim; raises FileExistsError if another rank has it."""
        path = self._folder / CLAIM
        with suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime > CLAIM_S:
                path.unlink()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))


def end_job(job: str, restart: int, reason: str) -> bool:
    """Requeue a job, or cancel it if Slurm refuses that; return whether this start of it, `restart`, ends.

    Nothing is done to a start that is over. A command without an answer may have been carried out.
    """
    from ..node.batch_host import ANSWER_S, restarts, run_command, show_job

    for command, done in ((["scontrol", "requeue", job], "requeued"), (["scancel", job], "cancelled")):
        facts = show_job(job, ANSWER_S)
        if not facts:
            return False
        if facts.get("JobState") != "RUNNING" or restarts(facts) > restart:
            return True
        reply = run_command(command)
        if reply.status == 0:
            say(f"{reason}: job {job} was {done}")
            return True
        if reply.is_silence:
            return False
    return False


def end_if_superseded(rank: int) -> None:
    """Kill this process and all its descendants if a newer attempt of the run has started.

    Raises OSError if the number cannot be read. Not SIGTERM: many scripts save a checkpoint then, into the folder that
    the newer attempt writes to.
    """
    try:
        attempt_number.check()
        return
    except attempt_number.Superseded as error:
        line = f"clusterrun: rank {rank}: {error}\n"
    printing = threading.Thread(target=_print, args=(line,), daemon=True)
    printing.start()
    printing.join(PRINT_S)
    for pid in probe.descendants(os.getpid()):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _print(line: str) -> None:
    with suppress(OSError, ValueError):
        os.write(2, line.encode())
