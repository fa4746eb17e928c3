"""Requests to save and stop: flags on each rank, which `Consensus` adds up over the ranks in every step."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType

from ...run_folder import end_time
from ..rank.distenv import DistEnv, RunEnv

REASONS = ("SIGTERM", "SIGUSR2", "a STOP file", "the time limit")
STOP_FILE_POLL_S = 1.0  # checking a shared file system for the STOP file in every step would be slow
LEAST_MARGIN_S = 60.0
FRESH_S = 30.0  # or a fifth of the margin: the ranks stop by an answer of at most this age

_received: set[str] = set()  # names of the signals so far; global, because signal handlers are


def expect() -> None:
    """Handle SIGUSR2 from now on: by default it would kill a rank that is still starting. Call from the main thread."""
    signal.signal(signal.SIGUSR2, _note)


def _note(signum: int, frame: FrameType | None) -> None:
    _received.add(signal.Signals(signum).name)


_note.saves_first = True  # type: ignore[attr-defined]  # exit.py lets a rank with this SIGTERM handler save first


class StopRequest:
    """The stop flags of this rank, set by signals, by a STOP file in the run's folder, or by too little time left."""

    def __init__(self, dist: DistEnv, run: RunEnv, time_margin: float) -> None:
        # rank 0 checks for the file; the sum of the flags passes it on to the others
        self._file = run.run_dir / "STOP" if dist.rank == 0 and run.run_dir else None
        self._file_seen = False
        self._next_check = 0.0
        # rank 0 checks for the end too, which may have moved
        self._end = KnownEnd(run.attempt_dir, run.end_time) if dist.rank == 0 else None
        # at most a tenth of the time left: a longer margin would stop a short job before it began
        self._longest = (run.end_time - time.time()) / 10 if run.end_time else 0.0
        self._asked_margin = time_margin

    def install(self) -> None:
        """Handle SIGTERM too: from now on there is something to save."""
        expect()
        self._before = signal.signal(signal.SIGTERM, _note)

    def release(self, stopped: bool) -> None:
        """Restore the SIGTERM handler: nothing after training is saved. Keep it after a SIGTERM or a stop of all ranks.

        SIGTERM may come twice, from Slurm and forwarded by the launcher of the node's ranks, or later than on the rank
        whose SIGTERM stopped them all.
        """
        if not stopped and "SIGTERM" not in _received:
            signal.signal(signal.SIGTERM, self._before)

    def flags(self, saving_s: float) -> list[float]:
        """Return 1 or 0 for each of REASONS: whether it applies to this rank. `saving_s` is how long saving takes."""
        return [
            float("SIGTERM" in _received),
            float("SIGUSR2" in _received),
            float(self._sees_file()),
            float(self._short_of_time(saving_s)),
        ]

    def _sees_file(self) -> bool:
        if self._file is not None and not self._file_seen and time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + STOP_FILE_POLL_S
            self._file_seen = os.path.exists(self._file)
        return self._file_seen

    def _short_of_time(self, saving_s: float) -> bool:
        measured = max(2 * saving_s, min(LEAST_MARGIN_S, self._longest))
        return self._end is not None and self._end.is_near(self._asked_margin or measured)


class KnownEnd:
    """What a rank knows of the end: `end` in seconds since 1970, or None, until the file names another."""

    LOOK_S = 30.0  # between two looks into the file; 1 s once the end is near
    PATIENCE_S = 30.0  # for a newer answer of Slurm, at most a quarter of the margin

    def __init__(self, folder: Path | None, end: float | None) -> None:
        self._folder = folder
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
        if self._folder is not None and (newest := end_time.read(self._folder)):
            self._end, self._checked = newest


def stop_reason(sums: list[float]) -> str:
    """Return the first reason whose flag is set on any rank, given the sums of the flags; empty if none is."""
    return next((reason for reason, count in zip(REASONS, sums, strict=True) if count > 0), "")


def clear_stop_file(run_dir: Path | None) -> None:
    """Delete the STOP file, so that the resumed run does not stop again."""
    if run_dir is not None:
        (run_dir / "STOP").unlink(missing_ok=True)
