"""Follow the training of one launch: write its progress into `progress.json`, and warn of a loss that goes wrong.

A thread of the supervisor reads what the launch appends to the job's logs, which are this process's own streams, and
rank 0's progress record. The record wins: a built-in task or `clusterrun.heartbeat` counts exactly. Lines count for the
rank that prints them: the first one that prints an advancing counter. srun cuts lines at 1,024 bytes, so what stands
beside such a cut, up to the next carriage return, is left out. If neither says anything, a trainer's file may
(trainer_files.py).
"""

from __future__ import annotations

import os
import re
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...base import oscillation
from ...base.decode import as_int
from ...base.printed_progress import LOSSES, PrintedProgress, read_line
from ...base.series import Thinned
from ...run_folder import rank_records, run_link, safe_files, training_progress
from ...run_folder.training_progress import TrainingProgress
from ..node.local_launcher import PIECE
from . import trainer_files

PACE_S = 5.0  # between two looks
FILES_S = 30.0  # between two looks for a trainer's file
SLOW_S = 5.0  # of the first steps are slower than the rest: kernels are chosen, caches are cold
MOST = 65_536  # bytes of a log that are read in one look, its last ones
MOST_RANKS = 16  # whose lines are followed
NAN_LOSSES = 3  # in a row: a single one is often a skipped step
EARLY = 0.1  # of the steps: the first loss of a launch that has seen the training's start
_REST = re.compile(rb"\A[^\r\n]*[\r\n]")  # of a line that began before
_LABEL = re.compile(rb"\s{0,9}(\d{1,9}): ")


class LogTail:
    """What is appended to an open log from now on; of another thing than a regular file nothing is read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._offset = self._size()
        self._cut: set[int] = set()  # ranks whose last line was cut at its end
        self.has_gap = False  # something was appended that was not read

    def _size(self) -> int:
        with suppress(OSError):
            found = os.fstat(self._descriptor)
            if stat.S_ISREG(found.st_mode):
                return found.st_size
        return 0

    def new_lines(self) -> Iterator[tuple[int, str]]:
        """Yield each new line and each finished state of a bar, with its rank (-1: unknown); raises OSError."""
        for line in self._read().split(b"\n"):
            yield from self._states(line)

    def _read(self) -> bytes:
        """Return what was appended, up to the end of a line or of a bar's state, and at most the last MOST bytes."""
        size = self._size()
        begin = max(self._offset, size - MOST)
        if size <= self._offset:
            self._offset = size  # a log that is shorter than it was is a new one
            return b""
        with open(f"/proc/self/fd/{self._descriptor}", "rb") as file:  # the descriptor itself is for writing only
            file.seek(begin)
            data = file.read(size - begin)
        is_inside = begin > self._offset  # of a line
        self.has_gap = self.has_gap or is_inside
        data = data[: 1 + max(data.rfind(b"\n"), data.rfind(b"\r"))]
        self._offset = begin + len(data)
        return _REST.sub(b"", data, count=1) if is_inside else data

    def _states(self, line: bytes) -> Iterator[tuple[int, str]]:
        """Yield the states of a line, without those that are cut."""
        label = _LABEL.match(line)
        rank = int(label[1]) if label else -1
        text = line[label.end() :] if label else line
        states = text.split(b"\r")
        if rank in self._cut:
            del states[0]
        self._cut.discard(rank)
        if label and len(text) == PIECE:
            self._cut.add(rank)
            del states[-1:]
        for state in filter(None, states):
            yield rank, state.decode("utf-8", "replace")


def _different(logs: Sequence[int]) -> list[int]:
    """Return the open files, of several descriptors of one file the first."""
    files: dict[tuple[int, int], int] = {}
    for log in logs:
        with suppress(OSError):  # it was closed
            found = os.fstat(log)
            files.setdefault((found.st_dev, found.st_ino), log)
    return list(files.values())


class ProgressFollower:
    """Follows one launch from its start to its end; an error of the file system changes nothing."""

    def __init__(
        self, attempt: Path, say: Callable[[str], None], logs: tuple[int, ...] = (1, 2), work: Sequence[str] = ()
    ) -> None:
        """``work`` is what the ranks run, with its arguments."""
        self._attempt, self._say, self._work = attempt, say, work
        self._began, self._files_due = time.time(), 0.0
        self._of_file = PrintedProgress()
        self._of_file.note_gap()  # its last rows are read now and then
        self._tails = [LogTail(log) for log in _different(logs)]
        self._printed: dict[int, PrintedProgress] = {}  # by rank
        self._written: TrainingProgress | None = None
        self._counts_since: float | None = None  # the time of the first step
        self._warm: tuple[int | None, float | None] = None, None  # the step that is past the slow ones, and its time
        self._recorded = Thinned[tuple[int, float]](LOSSES)  # the losses in rank 0's record
        self._ended = threading.Event()
        self._has_warned, self._link = False, ""
        self._oscillation = ""  # of the loss, in words; also when it has ceased
        self._thread = threading.Thread(target=self._run, name="clusterrun-progress", daemon=True)

    def start(self) -> None:
        """Start following in a daemon thread."""
        self._thread.start()

    def close(self) -> None:
        """Look once more, after the ranks have ended."""
        self._ended.set()
        self._thread.join(PACE_S)

    def _run(self) -> None:
        # leave signals to the main thread, which forwards them to the step
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2))
        while not self._ended.wait(PACE_S):
            self.look()
        self.look()

    def look(self) -> None:
        """Read what is new, and write the progress if it has changed."""
        with suppress(OSError):
            self._read_logs(time.time())
        progress, losses = self._find_progress()
        progress = progress and self._measured_when_warm(progress)
        warning = self._judge(losses)
        if progress is not None and progress != self._written:
            with suppress(OSError):
                training_progress.write(self._attempt, progress, losses, warning)
                self._written = progress

    def _judge(self, losses: Sequence[tuple[int, float]]) -> str:
        """Return that the loss oscillates, or has, and say so once; empty if it never did.

        A launch that was resumed late in a training does not know its first losses, by which it is judged.
        """
        printed = self._counting()
        points = losses or (printed.losses.values if printed is not None else [])
        if not self._oscillation and points and points[0][0] <= EARLY * points[-1][0]:
            self._oscillation = oscillation.describe([loss for _, loss in points])
            if self._oscillation:
                self._say(f"warning: {self._oscillation}")
        return self._oscillation

    def _has_written(self, step: int) -> bool:
        return self._written is not None and self._written.step == step

    def _measured_when_warm(self, progress: TrainingProgress) -> TrainingProgress:
        """Return the progress with the step from which its speed is measured. The slow first steps do not count."""
        if progress.first_step_at != self._counts_since:  # the script started to count again
            self._counts_since, self._warm = progress.first_step_at, (None, None)
        if self._warm == (None, None) and progress.stepped - (progress.first_step_at or progress.stepped) >= SLOW_S:
            self._warm = progress.step, progress.stepped
        return progress._replace(warm_step=self._warm[0], warm_step_at=self._warm[1])

    def _find_progress(self) -> tuple[TrainingProgress | None, Sequence[tuple[int, float]]]:
        """Return how far the training is, and some of its losses with their steps."""
        record: dict[str, Any] = {}
        with suppress(OSError):
            record = rank_records.read_node(self._attempt, 0)[0].get(0, {})
        recorded = training_progress.parse(record)
        if recorded is not None:
            if recorded.loss is not None and not self._has_written(recorded.step):
                self._recorded.add((recorded.step, recorded.loss))
            return recorded, self._recorded.values
        printed = self._counting() or self._of_file
        if printed is self._of_file:
            self._read_file(record, time.time())
        return _as_progress(printed), printed.losses.values

    def _read_file(self, record: Mapping[str, Any], now: float) -> None:
        """Read the file that the trainer writes; ``record`` is rank 0's."""
        if now < self._files_due:
            return
        self._files_due = now + FILES_S
        path = trainer_files.find(self._work, self._began, as_int(record.get("pid")), self._attempt)
        if path is not None:
            self._of_file.take(trainer_files.read(path), safe_files.written_at(path) or now)

    def _read_logs(self, now: float) -> None:
        for tail in self._tails:
            for rank, line in tail.new_lines():
                self._keep_link(line)
                if rank in self._printed or len(self._printed) < MOST_RANKS:
                    self._take(rank, line, now, has_gap=tail.has_gap)
        is_nan = any(printed.nan_losses >= NAN_LOSSES for printed in self._printed.values())
        if is_nan and not self._has_warned:
            self._has_warned = True
            self._say("warning: the loss in the log is NaN and stays NaN")

    def _take(self, rank: int, line: str, now: float, *, has_gap: bool) -> None:
        """Join a line of a rank; ``has_gap``: earlier ones of this log may be missing."""
        printed = self._printed.setdefault(rank, PrintedProgress())
        if has_gap:
            printed.note_gap()
        printed.take(read_line(line), now)

    def _keep_link(self, line: str) -> None:
        """Keep the first link to the run's page that is printed; raises OSError."""
        if not self._link and (link := run_link.find(line, os.environ)):
            self._link = link
            run_link.write(self._attempt, link)

    def _counting(self) -> PrintedProgress | None:
        """Return what the lines say of the first rank that prints a counter."""
        return next((printed for _, printed in sorted(self._printed.items()) if printed.has_advanced), None)


def _as_progress(printed: PrintedProgress) -> TrainingProgress | None:
    """Return what lines or rows say together; None before their counter has advanced."""
    if printed.step is None or not printed.has_advanced:
        return None
    return TrainingProgress(
        printed.step, printed.stepped, printed.steps, printed.loss, printed.first_step, printed.first_step_at,
        nan_losses=printed.nan_losses or None,
    )  # fmt: skip
