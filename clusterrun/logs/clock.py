"""Read the log clock: the sizes of a job's logs over time, as no line of a log has a time.

Each attempt's folder has ``log-clock``, lines of ``TIME OUT_BYTES ERR_BYTES`` written in the batch step
(``worker/rendezvous.py``), and ``log-start``, ``OUT_BYTES ERR_BYTES`` at the start of the batch script. Time is the
node's, in seconds since 1970.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from clusterrun.errors import ClusterrunError
from clusterrun.logs.files import LogFile
from clusterrun.logs.request import Tick

NAME = "log-clock"
START = "log-start"
MOST = 4 * 1024 * 1024
"""The last bytes of one clock that are read; the writer stays far below it."""
_SIZE = 1 << 62  # no file is larger


def clock_ticks(attempts: Iterable[Path]) -> list[Tick]:
    """Return the ticks of these attempt folders, oldest first; none if no clock can be read."""
    ticks = [tick for folder in attempts for tick in _ticks_of_file(folder / NAME)]
    return sorted(ticks, key=lambda tick: tick.time)


def log_start(attempt: Path) -> tuple[int, int] | None:
    """Return the sizes of both logs when an attempt began, None if it did not record them."""
    words = _read_tail(attempt / START, 64).split()
    if len(words) != 2 or not all(word.isdigit() and len(word) < 19 for word in words):
        return None
    return int(words[0]), int(words[1])


def read_ticks(attempts: Iterable[Path], logs: tuple[Path, Path], begin: tuple[int, int] = (0, 0)) -> tuple[Tick, ...]:
    """Return ``clock_ticks``, and a tick with the sizes of the logs at their last change if that was later.

    Sizes count from ``begin``, the offsets of the job's first bytes.
    """
    ticks = clock_ticks(attempts)
    if ticks and (now := _tick_of_logs(logs)) is not None and now.time > ticks[-1].time:
        ticks.append(now)
    out, err = begin
    return tuple(Tick(tick.time, max(0, tick.out - out), max(0, tick.err - err)) for tick in ticks)


def parse_ticks(data: bytes) -> Iterator[Tick]:
    """Yield the ticks in the bytes of a clock; a torn or unfinished line is left out."""
    for line in data.split(b"\n")[:-1]:
        words = line.split()
        if len(words) != 3 or not (words[1].isdigit() and words[2].isdigit()):
            continue
        try:
            tick = Tick(float(words[0]), int(words[1]), int(words[2]))
        except ValueError:  # not a number, or one with too many digits
            continue
        if math.isfinite(tick.time) and tick.time >= 0 and max(tick.out, tick.err) < _SIZE:
            yield tick


def _ticks_of_file(path: Path) -> list[Tick]:
    data = _read_tail(path, MOST + 1)
    if len(data) > MOST:
        data = data[data.find(b"\n") + 1 :]
    return list(parse_ticks(data))


def _read_tail(path: Path, most: int) -> bytes:
    """Return the last bytes of a regular file; none if it is missing or cannot be read."""
    try:
        with closing(LogFile(path)) as file:
            size = file.size()
            return b"".join(file.blocks(max(0, size - most), size))
    except (OSError, ClusterrunError):
        return b""


def _tick_of_logs(logs: tuple[Path, Path]) -> Tick | None:
    try:
        out, err = (path.stat(follow_symlinks=False) for path in logs)
    except OSError:
        return None
    return Tick(max(out.st_mtime, err.st_mtime), out.st_size, err.st_size)
