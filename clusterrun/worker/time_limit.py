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
from pathlib import Path
from typing import TYPE_CHECKING

from ..run_folder.files import read_json, write_json
from . import batch_host
from .end_records import VERSION
from .errors import say

if TYPE_CHECKING:
    from .job import Job

FILE = "end-time.json"
WAKE_S = 5.0  # between two looks at the clock: a longer gap is a suspension
SLOWEST_S, FASTEST_S = 180.0, 10.0  # between two questions to Slurm
FRESH_S = 30.0  # or a fifth of the margin: the ranks stop by an answer of at most this age
MOVED_S = 60.0  # a difference that is worth a line in the log


class TimeLimit:
    """Keeps `end-time.json` of one launch of a Slurm job up to date, in a thread; `end_of` is `Requeue.end_time`."""

    def __init__(self, job: Job, end: str, end_of: Callable[[str], str]) -> None:
        self._job, self._end, self._end_of = job, end, end_of
        self._file: Path = job.attempt_dir / FILE
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
        facts = batch_host.show_job(self._job.identity.job_id)
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
            write_json(self._file, {"version": VERSION, "end": end, "checked": time.time()})


class KnownEnd:
    """What a rank knows of the end: `end` in seconds since 1970, or None, until the file names another."""

    LOOK_S = 30.0  # between two looks into the file; 1 s once the end is near
    PATIENCE_S = 30.0  # for a newer answer of Slurm, at most a quarter of the margin

    def __init__(self, folder: Path | None, end: float | None) -> None:
        self._file = folder / FILE if folder is not None else None
        self._end = end
        self._checked: float | None = None  # None: nobody asks
        self._next_look = 0.0
        self._near_since: float | None = None  # monotonic

    def is_near(self, margin: float) -> bool:
        """Return whether less than `margin` seconds are left, by an answer of Slurm that is not old.

        After a suspension it is old, and the supervisor, which was suspended too, is about to ask again.
        """
        now = time.monotonic()
        if now >= self._next_look or (self._near_since is None and self._is_short(margin)):
            self._read(now)
        if not self._is_short(margin):
            self._near_since = None
            return False
        if self._near_since is None:
            self._near_since = now
        self._next_look = min(self._next_look, now + 1.0)
        is_fresh = self._checked is None or time.time() - self._checked < max(FRESH_S, margin / 5)
        return is_fresh or now - self._near_since > min(self.PATIENCE_S, margin / 4)

    def _is_short(self, margin: float) -> bool:
        return self._end is not None and self._end - time.time() < margin

    def _read(self, now: float) -> None:
        self._next_look = now + self.LOOK_S
        if self._file is None:
            return
        with suppress(ValueError, TypeError, KeyError, OverflowError):
            found = read_json(self._file) or {}
            end, checked = found["end"], float(found["checked"])
            self._end, self._checked = None if end is None else float(end), checked


def _has_moved(before: str, end: str) -> bool:
    if not before or not end:
        return before != end
    return abs(int(end) - int(before)) >= MOVED_S


def _in_words(end: str) -> str:
    return time.strftime("at %H:%M:%S on %Y-%m-%d", time.localtime(int(end))) if end else "never"
