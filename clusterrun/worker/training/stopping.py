"""What asks a run to save and stop: a flag on each rank, which agreement.py adds up at every step boundary."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType

from ..distenv import DistEnv, RunEnv

REASONS = ("SIGTERM", "SIGUSR2", "a STOP file", "the time limit")
LOOK_EVERY_S = 1.0  # a shared file system is not asked for the STOP file at every step
LEAST_MARGIN_S = 60.0

_received: set[str] = set()  # names of the signals so far: of the process, as the handlers are


def expect() -> None:
    """Note SIGUSR2 from now on (call early, from the main thread): its default would end a rank that still starts."""
    signal.signal(signal.SIGUSR2, _note)


def _note(signum: int, frame: FrameType | None) -> None:
    _received.add(signal.Signals(signum).name)


class StopRequest:
    """This rank's own wish to stop: set by signals, by a STOP file in the run's folder, or by little time left."""

    def __init__(self, dist: DistEnv, run: RunEnv, time_margin: float) -> None:
        # one rank looks for the file: the agreement carries it to the others
        self._file = run.run_dir / "STOP" if dist.rank == 0 and run.run_dir else None
        self._file_seen = False
        self._next_look = 0.0
        self._end = run.end_time
        # a margin that eats a short job up would stop it before it began
        self._longest = (run.end_time - time.time()) / 10 if run.end_time else 0.0
        self._asked_margin = time_margin

    def install(self) -> None:
        """Take SIGTERM too: from now on there is something to save."""
        expect()
        self._before = signal.signal(signal.SIGTERM, _note_and_save)

    def release(self) -> None:
        """Give SIGTERM back: what comes after training is not saved."""
        signal.signal(signal.SIGTERM, self._before)

    def wishes(self, saving_s: float) -> list[float]:
        """One number per reason of REASONS, 1 where this rank wants to stop for it; `saving_s` is what saving takes."""
        return [
            float("SIGTERM" in _received),
            float("SIGUSR2" in _received),
            float(self._sees_file()),
            float(self._short_of_time(saving_s)),
        ]

    def _sees_file(self) -> bool:
        if self._file is not None and not self._file_seen and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY_S
            self._file_seen = os.path.exists(self._file)
        return self._file_seen

    def _short_of_time(self, saving_s: float) -> bool:
        if self._end is None:
            return False
        measured = max(2 * saving_s, min(LEAST_MARGIN_S, self._longest))
        return self._end - time.time() < (self._asked_margin or measured)


def _note_and_save(signum: int, frame: FrameType | None) -> None:
    _note(signum, frame)


_note_and_save.saves_first = True  # type: ignore[attr-defined]  # for ending.py


def stop_reason(sums: list[float]) -> str:
    """The reason that the added-up wishes of all ranks give, or an empty text."""
    return next((reason for reason, wish in zip(REASONS, sums, strict=True) if wish > 0), "")


def clear_stop_file(run_dir: Path | None) -> None:
    """Take the STOP file away once it is obeyed, so that the resumed run does not stop again."""
    if run_dir is not None:
        (run_dir / "STOP").unlink(missing_ok=True)
