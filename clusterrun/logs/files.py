"""A job's two log files: their names, opening them safely, and reading all or the last lines of them."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from clusterrun.errors import ClusterrunError, RequestError
from clusterrun.job import JobId
from clusterrun.logs.lines import LineReader, LogLine, Stream

BLOCK = 256 * 1024
"""Bytes read at a time: large enough for speed, small enough for both streams to take turns."""
_COUNTED = 10_000  # more last lines than this are counted first and read again instead of kept in memory

Streams = Literal["out", "err", "both"]
LogPaths = tuple[Path, Path]
#: what filter() takes: None keeps every line, at no cost
Match = Callable[[LogLine], bool] | None


def log_paths(logs: Path, job: JobId) -> LogPaths:
    """The files of a job's two streams, (out, err); an array's task has its own, a component its job's."""
    name = job.raw if job.task is None else f"{job.raw}_{job.task}"
    return logs / f"train_{name}.out", logs / f"train_{name}.err"


class LogFile:
    """An open log; ``identity`` is equal for two openings of the same file."""

    def __init__(self, path: Path) -> None:
        """Open it for reading; raises FileNotFoundError, and RequestError for anything but a plain readable file.

        Log folders may be shared, so the name may have been planted: a link is not followed, and a
        FIFO or a device is neither waited for nor read.
        """
        try:
            _check_regular(path, path.lstat())  # opening a device can already do something
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (FileNotFoundError, RequestError):
            raise
        except OSError as error:
            raise _refused(path, f"cannot be opened: {error.strerror}") from error
        self.path = path
        try:
            status = os.fstat(self._fd)
            _check_regular(path, status)  # it may have been swapped since
        except BaseException:
            self.close()
            raise
        self.identity = status.st_dev, status.st_ino

    def size(self) -> int:
        """Bytes in it now."""
        return os.fstat(self._fd).st_size

    def read(self, at: int, count: int) -> bytes:
        """Up to ``count`` bytes from offset ``at``; none at the end. Raises OSError (a server may have removed it)."""
        return os.pread(self._fd, count, at)

    def blocks(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from ``start`` to ``end``, block by block, fewer where the file became shorter."""
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


def read_lines(
    paths: LogPaths,
    *,
    stream: Streams = "both",
    ranks: Collection[int] | None = None,
    tail: int | None = None,
    grep: re.Pattern[str] | None = None,
    world_size: int | None = None,
) -> Iterator[LogLine]:
    """The lines of the logs that pass the filters, as the files are now: those of out, then those of err.

    Nothing in the files says when a line was written, so the two cannot be merged in order. With
    ``tail``, the last that many passing lines of each. A file that does not exist has no lines.
    Raises RequestError where a file is not a plain one.
    """
    match = matcher(ranks, grep)
    for name, path in chosen(paths, stream):
        try:
            file = LogFile(path)
        except FileNotFoundError:
            continue
        with closing(file):
            new_reader = partial(LineReader, name, world_size=world_size)
            end = file.size()  # a file that is still written to must not keep us for ever
            if tail is None:
                yield from filter(match, _lines(file.blocks(0, end), new_reader(), finish=True))
            else:
                yield from last_lines(file, end, tail, new_reader, match, finish=True)[0]


def last_lines(
    file: LogFile, end: int, tail: int, new_reader: Callable[[], LineReader], match: Match, *, finish: bool
) -> tuple[Iterable[LogLine], LineReader]:
    """The last ``tail`` passing lines before offset ``end``; and the reader, which can go on from there afterwards.

    Reads backwards from the end, as far as it must. With ``finish`` an unfinished line counts as one.
    """
    if tail > _COUNTED:
        total = sum(1 for _ in filter(match, _lines(file.blocks(0, end), new_reader(), finish=finish)))
        reader = new_reader()
        passing = filter(match, _lines(file.blocks(0, end), reader, finish=finish))
        return islice(passing, max(0, total - tail), None), reader
    span = 2 * BLOCK
    while True:
        start = max(0, end - span)
        span *= 4
        reader = new_reader()
        blocks = file.blocks(start, end)
        if start > 0:
            # The first block begins inside a line, perhaps between the pieces of several. It is read
            # for what it leaves unfinished; its own lines do not count.
            first = next(blocks, b"")
            if b"\n" not in first:
                continue
            reader.feed(first)
        kept = deque(filter(match, _lines(blocks, reader, finish=finish)), maxlen=tail)
        if len(kept) == tail or start == 0:
            return kept, reader


def _lines(blocks: Iterable[bytes], reader: LineReader, *, finish: bool) -> Iterator[LogLine]:
    for block in blocks:
        yield from reader.feed(block)
    if finish:
        yield from reader.end()


def chosen(paths: LogPaths, stream: Streams) -> list[tuple[Stream, Path]]:
    """The files of the streams asked for, out first."""
    both: list[tuple[Stream, Path]] = [("out", paths[0]), ("err", paths[1])]
    return [one for one in both if stream in (one[0], "both")]


def matcher(ranks: Collection[int] | None, grep: re.Pattern[str] | None) -> Match:
    """Whether a line passes: of one of these tasks, its text holding the pattern; our own notices always do."""
    if ranks is None and grep is None:
        return None
    wanted = None if ranks is None else frozenset(ranks)

    def match(line: LogLine) -> bool:
        if line.notice:
            return True
        if wanted is not None and line.rank not in wanted:
            return False
        return grep is None or grep.search(line.text) is not None

    return match


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((word for is_kind, word in _KINDS if is_kind(status.st_mode)), "something else")
        raise _refused(path, f"is {kind}, not a plain file, and is not read")


def _refused(path: Path, why: str) -> RequestError:
    return RequestError(f"the log {path} {why}", hint=f"see what it is: ls -l {shlex.quote(str(path))}")


_KINDS: list[tuple[Callable[[int], bool], str]] = [
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
]
