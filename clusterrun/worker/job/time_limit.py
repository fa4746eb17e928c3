"""The end of a job's time limit, which may move: `scontrol update` raises it, a suspension postpones it.

Standard library only. The supervisor asks Slurm every few minutes, more often towards the end, and at once after it
was suspended. It writes `end-time.json` into the attempt's folder, from which rank 0 of a built-in task learns the
newest end (stopping.py).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ...run_folder import end_time
from ..node import batch_host
from ..node.log import say

if TYPE_CHECKING:
    from .job import Job

WAKE_S = 5.0  # between two looks at the clock: a longer gap is a suspension
SLOWEST_S, FASTEST_S = 180.0, 10.0  # between two questions to Slurm
MOVED_S = 60.0  # a difference that is worth a line in the log


class TimeLimit:
    """Keeps `end-time.json` of one launch of a Slurm job up to date, in a thread; `end_of` is `Requeue.end_time`."""

    def __init__(self, job: Job, end: str, end_of: Callable[[str], str]) -> None:
        self._job, self._end, self._end_of = job, end, end_of
        self._over = threading.Event()
        self._due = 0.0

    def start(self) -> None:
        """Write the file, and start asking."""
        self._write()
        self._set_due()
        threading.Thread(target=self._run, name="clusterrun-time-limit", daemon=True).start()

    def close(self) -> None:
        """Stop asking: the launch has ended."""
        self._over.set()

    def look(self) -> None:
        """Ask Slurm, and write the answer; a silent Slurm changes nothing."""
        facts = batch_host.show_job(self._job.slurm_id)
        if facts and not self._over.is_set():
            before, self._end = self._end, self._end_of(batch_host.end_time(facts))
            self._write()
            if _has_moved(before, self._end):
                say(f"job {self._job.name}: the time limit now ends {_in_words(self._end)}")
        self._set_due()

    def _run(self) -> None:
        # leave signals to the main thread, which forwards them to the step
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2))
        woke = time.monotonic()
        while not self._over.wait(WAKE_S):
            before, woke = woke, time.monotonic()
            was_suspended = woke - before > 2 * WAKE_S
            if was_suspended or woke >= self._due:
                self.look()

    def _set_due(self) -> None:
        left = int(self._end) - time.time() if self._end else SLOWEST_S * 10
        self._due = time.monotonic() + min(SLOWEST_S, max(FASTEST_S, left / 10))

    def _write(self) -> None:
        end = int(self._end) if self._end else None
        with suppress(OSError):
            end_time.write(self._job.attempt_dir, end)


def _has_moved(before: str, end: str) -> bool:
    if not before or not end:
        return before != end
    return abs(int(end) - int(before)) >= MOVED_S


def _in_words(end: str) -> str:
    return time.strftime("at %H:%M:%S on %Y-%m-%d", time.localtime(int(end))) if end else "never"
