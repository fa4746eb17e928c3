"""A job's two log files: open them safely, and use the log clock, as no line of a log has a time.

Each attempt's folder has ``log-clock``, lines of ``TIME OUT_BYTES ERR_BYTES`` written in the batch step
(``worker/rank/rendezvous.py``), and ``log-start``, ``OUT_BYTES ERR_BYTES`` at the start of the batch script. Time is
the node's, in seconds since 1970.
"""

from __future__ import annotations

import math
import os
import shlex
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from clusterrun.base.errors import ClusterrunError, RequestError
from clusterrun.run_folder.safe_files import user_name

Stream = Literal["out", "err"]
Streams = Literal["out", "err", "both"]

BLOCK = 64 * 1024
"""Bytes read at a time. Twice as fast as 256 KiB: from 128 KiB on, each buffer is new memory from the kernel."""
CLOCK, START = "log-clock", "log-start"
MOST = 4 * 1024 * 1024
"""The last bytes of one clock that are read; the writer stays far below it."""
_SIZE = 1 << 62  # no file is larger
_KINDS = {
    stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


class NotTheJobs(RequestError):
    """A log belongs to a user who does not own the job, so it may be planted."""


class Tick(NamedTuple):
    """The sizes of a job's log files at one time: seconds since 1970, bytes of out, bytes of err."""

    time: float
    out: int
    err: int


@dataclass(frozen=True)
class Source:
    """The log files of one job, or of one task of an array.

    Without ``err``, the job writes both streams into ``out``. ``name`` is printed before each line. ``ranks`` are
    srun's labels, None for all lines. ``ticks`` are sorted by time. ``begin`` holds the offset of the job's first byte
    in each file: an earlier job with the same id wrote what is before it. ``end`` holds the offsets after its last
    byte, None if it has the rest. ``owners`` are the uids that may own the files, None for any.
    """

    out: Path
    err: Path | None = None
    name: str = ""
    world_size: int | None = None
    ranks: frozenset[int] | None = None
    ticks: tuple[Tick, ...] = ()
    begin: tuple[int, int] = (0, 0)
    end: tuple[int, int] | None = None
    owners: frozenset[int] | None = None

    @property
    def is_own(self) -> bool:
        """Whether only this user and root may own the files."""
        return self.owners is not None and self.owners <= {os.getuid(), 0}

    def files(self, stream: Streams) -> list[tuple[Stream, Path]]:
        """Return the files of the requested streams, out first."""
        both: list[tuple[Stream, Path | None]] = [("out", self.out), ("err", self.err)]
        return [(name, path) for name, path in both if path is not None and stream in (name, "both")]

    def open(self, stream: Stream) -> LogFile:
        """Open the log of a stream. Raises what LogFile raises."""
        which = stream == "err"
        end = None if self.end is None else self.end[which]
        return LogFile(dict(self.files("both"))[stream], self.begin[which], self.owners, end)

    def find_refused(self, streams: Streams) -> list[NotTheJobs]:
        """Return an error for each file that is not read because another user owns it."""
        found: list[NotTheJobs] = []
        for stream, _ in self.files(streams):
            try:
                self.open(stream).close()
            except NotTheJobs as error:
                found.append(error)
            except (OSError, ClusterrunError):
                continue
        return found


class LogFile:
    """An open log, from its job's first byte on. ``identity`` is equal each time the same file is opened.

    ``begin`` is the offset of that byte in the file; all other offsets count from it. With ``end``, an offset in the
    file too, it has no size beyond it.
    """

    def __init__(
        self, path: Path, begin: int = 0, owners: Collection[int] | None = None, end: int | None = None
    ) -> None:
        """Open it for reading. Raises FileNotFoundError, and RequestError for anything but a readable regular file.

        A log folder may be shared, so the name may be planted: no link is followed, and no FIFO or device is opened.
        With ``owners``, raises NotTheJobs for a file of any other uid. A file shorter than ``begin`` was truncated, and
        is read from its start.
        """
        try:
            _check_regular(path, path.lstat())  # opening a device can have effects
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _refused(path, f"cannot be opened: {error.strerror}") from error
        self.path = path
        try:
            status = os.fstat(self._fd)
            _check_regular(path, status)  # it may have been replaced since
            if owners is not None and status.st_uid not in owners:
                owner = user_name(status.st_uid)
                raise _refused(path, f"was not read: it belongs to {owner}, who does not own the job", NotTheJobs)
        except BaseException:
            self.close()
            raise
        self.identity = status.st_dev, status.st_ino
        self.begin = begin if begin <= status.st_size else 0
        self._end = end

    def size(self) -> int:
        """Return its size in bytes; negative if it was truncated before ``begin``."""
        size = os.fstat(self._fd).st_size
        return (size if self._end is None else min(size, self._end)) - self.begin

    def read(self, at: int, count: int) -> bytes:
        """Return up to ``count`` bytes from offset ``at``; none at the end. Raises OSError if the file is gone."""
        return os.pread(self._fd, count, self.begin + at)

    def blocks(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from ``start`` to ``end``, block by block; fewer if the file became shorter."""
        while start < end:
            try:
                data = self.read(start, min(BLOCK, end - start))
            except OSError as error:
                raise ClusterrunError(
                    f"the log {self.path} cannot be read: {error.strerror}", hint="try again"
                ) from error
            if not data:
                break
            yield data
            start += len(data)

    def close(self) -> None:
        os.close(self._fd)


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a special file")
        raise _refused(path, f"was not read: it is {kind}, not a regular file")


def _refused(path: Path, why: str, kind: type[RequestError] = RequestError) -> RequestError:
    return kind(f"the log {path} {why}", hint=f"ls -l {shlex.quote(str(path))}")


# -- the log clock -------------------------------------------------------------------------------------------------


def clock_ticks(attempts: Iterable[Path]) -> list[Tick]:
    """Return the ticks of these attempt folders, oldest first; none if no clock can be read."""
    ticks: list[Tick] = []
    for folder in attempts:
        data = _read_tail(folder / CLOCK, MOST + 1)
        ticks += parse_ticks(data if len(data) <= MOST else data[data.find(b"\n") + 1 :])
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
    try:
        out, err = (path.stat(follow_symlinks=False) for path in logs)
    except OSError:
        pass
    else:
        if ticks and (changed := max(out.st_mtime, err.st_mtime)) > ticks[-1].time:
            ticks.append(Tick(changed, out.st_size, err.st_size))
    return tuple(Tick(tick.time, max(0, tick.out - begin[0]), max(0, tick.err - begin[1])) for tick in ticks)


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


def interleave(
    ticks: Sequence[Tick], sizes: Mapping[Stream, int], starts: Mapping[Stream, int]
) -> list[tuple[Stream, int, int]]:
    """Return parts of both files in the order of writing, as (stream, from, to) in bytes.

    They go from ``starts`` to ``sizes``. Between two ticks the order is unknown, and out comes first.
    """
    parts: list[tuple[Stream, int, int]] = []
    at = dict(starts)
    for tick in [*_since_cut(ticks), Tick(math.inf, sizes["out"], sizes["err"])]:
        written: dict[Stream, int] = {"out": tick.out, "err": tick.err}
        for stream, size in sizes.items():
            to = min(written[stream], size)
            if to > at[stream]:
                parts.append((stream, at[stream], to))
                at[stream] = to
    return parts


def offsets_at(ticks: Sequence[Tick], sizes: Mapping[Stream, int], time: float) -> dict[Stream, int]:
    """Return the sizes of both files at the last tick before a time; 0 without such a tick, or if the file was cut."""
    offsets: dict[Stream, int] = {"out": 0, "err": 0}
    for tick in _since_cut(ticks):
        if tick.time <= time:
            offsets = {"out": tick.out, "err": tick.err}
    return {stream: at if at <= sizes[stream] else 0 for stream, at in offsets.items()}


def _since_cut(ticks: Sequence[Tick]) -> Sequence[Tick]:
    """Return the ticks after the last cut of a file, which shows as a smaller size."""
    cut = max((i for i, (a, b) in enumerate(pairwise(ticks), 1) if b.out < a.out or b.err < a.err), default=0)
    return ticks[cut:]


def _read_tail(path: Path, most: int) -> bytes:
    """Return the last bytes of a regular file; none if it is missing or cannot be read."""
    try:
        with closing(LogFile(path)) as file:
            size = file.size()
            return b"".join(file.blocks(max(0, size - most), size))
    except (OSError, ClusterrunError):
        return b""
