"""The log clock: when a job's logs were how long, as noted beside the job; nothing in a log itself says it.

Each attempt's folder holds ``log-clock``, lines of ``TIME OUT_BYTES ERR_BYTES`` written by the helper in the batch step
(``worker/rendezvous.py``), and ``log-start``, ``OUT_BYTES ERR_BYTES`` at the first act of the batch script. Time is the
node's, in seconds since 1970.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from clusterrun.errors import ClusterrunError
from clusterrun.logs.files import LogFile
from clusterrun.logs.wanted import Tick

NAME = "log-clock"
START = "log-start"
MOST = 4 * 1024 * 1024
"""Bytes read of one clock, the last ones: the writer stays far below it, whatever else the file may be."""
_SIZE = 1 << 62  # no file is longer


def clock_ticks(attempts: Iterable[Path]) -> list[Tick]:
    """The ticks of these attempt folders, oldest first; none where no clock was kept or can be read."""
    ticks = [tick for folder in attempts for tick in _of_file(folder / NAME)]
    return sorted(ticks, key=lambda tick: tick.time)


def log_start(attempt: Path) -> tuple[int, int] | None:
    """How long both logs were when an attempt began, by its own word; None where it did not say."""
    words = _bytes_of(attempt / START, 64).split()
    if len(words) != 2 or not all(word.isdigit() and len(word) < 19 for word in words):
        return None
    return int(words[0]), int(words[1])


def read_ticks(attempts: Iterable[Path], logs: tuple[Path, Path], begin: tuple[int, int] = (0, 0)) -> tuple[Tick, ...]:
    """``clock_ticks``, and after them what the logs tell themselves: how long they are since they last changed.

    Lengths count from ``begin``, the offsets of the job's first bytes.
    """
    ticks = clock_ticks(attempts)
    if ticks and (now := _of_logs(logs)) is not None and now.time > ticks[-1].time:
        ticks.append(now)
    out, err = begin
    return tuple(Tick(tick.time, max(0, tick.out - out), max(0, tick.err - err)) for tick in ticks)


def parse_ticks(data: bytes) -> Iterator[Tick]:
    """The ticks in the bytes of a clock; a line that is torn, unfinished or anything else is left out."""
    for line in data.split(b"\n")[:-1]:
        words = line.split()
        if len(words) != 3 or not (words[1].isdigit() and words[2].isdigit()):
            continue
        try:
            tick = Tick(float(words[0]), int(words[1]), int(words[2]))
        except ValueError:  # no number, or one of very many digits
            continue
        if math.isfinite(tick.time) and tick.time >= 0 and max(tick.out, tick.err) < _SIZE:
            yield tick


def _of_file(path: Path) -> list[Tick]:
    data = _bytes_of(path, MOST + 1)
    if len(data) > MOST:
        data = data[data.find(b"\n") + 1 :]
    return list(parse_ticks(data))


def _bytes_of(path: Path, most: int) -> bytes:
    """The last bytes of a plain file; none where it is missing, another's, or anything else."""
    try:
        with closing(LogFile(path)) as file:
            size = file.size()
            return b"".join(file.blocks(max(0, size - most), size))
    except (OSError, ClusterrunError):
        return b""


def _of_logs(logs: tuple[Path, Path]) -> Tick | None:
    try:
        out, err = (path.stat(follow_symlinks=False) for path in logs)
    except OSError:
        return None
    return Tick(max(out.st_mtime, err.st_mtime), out.st_size, err.st_size)
