"""Following a job's two logs while they are written, on a file system that may lag.

The files may appear late, be cut and begin again, be replaced or vanish, and another machine may
have written bytes that this one does not see until it opens the file again (NFS). Each is met
without losing or repeating a line; what happened to the file is said in a line marked ``notice``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from clusterrun.logs.files import BLOCK, LogFile, LogPaths, Match, Streams, chosen, last_lines, matcher
from clusterrun.logs.lines import LineReader, LogLine, Stream

REOPEN = 30.0
"""Seconds without anything new after which a file is opened again: a network file system then asks its server."""
GRACE = 2.0
"""Seconds of silence after the end of the job before the end of its logs is believed."""
_LATE = 30.0  # ... and the most we go on for, where something that outlived the job still writes
_MARK = 64  # bytes before our place that must still be there


def follow(
    paths: LogPaths,
    *,
    stop: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    poll: float = 0.2,
    stream: Streams = "both",
    ranks: Collection[int] | None = None,
    tail: int | None = None,
    grep: re.Pattern[str] | None = None,
    world_size: int | None = None,
    reopen: float = REOPEN,
    grace: float = GRACE,
) -> Iterator[LogLine]:
    """The passing lines of both logs as they come, until ``stop()`` and all that was written before it.

    Begins with the first line, or with the last ``tail`` passing ones of each file that is there. A
    line is given once its newline has come, or at the end. ``stop`` is asked, often, only when there
    is nothing new. Times in seconds, counted by our own sleeps. Raises RequestError where a log is not
    a plain file, also where it is replaced by one later.
    """
    match = matcher(ranks, grep)
    logs = [
        _Followed(path, partial(LineReader, name, world_size=world_size), name) for name, path in chosen(paths, stream)
    ]
    idle = 0.0  # since the files were last opened
    after: float | None = None  # since stop() said yes
    quiet = 0.0
    try:
        for log in logs:
            yield from log.begin(tail, match)
        while True:
            new = False
            for log in logs:  # a block of each in turn, so that neither waits for the other
                some, lines = log.step()
                new = new or some
                yield from filter(match, lines)
            if new:
                quiet = 0.0
                continue
            if after is None and stop():
                after, quiet = 0.0, 0.0
            elif after is not None and (quiet >= grace or after >= _LATE):
                break
            else:
                sleep(poll)
                idle, quiet = idle + poll, quiet + poll
                after = None if after is None else after + poll
            fresh = after is not None or idle >= reopen
            idle = 0.0 if fresh else idle
            for log in logs:
                yield from filter(match, log.look(fresh=fresh))
        for log in logs:
            yield from filter(match, log.reader.end())
    finally:
        for log in logs:
            log.close()


class _Followed:
    """One file that is followed: our place in it, and how to tell that it is still the same file."""

    def __init__(self, path: Path, new_reader: Callable[[], LineReader], stream: Stream) -> None:
        self._path = path
        self._stream = stream
        self._new_reader = new_reader
        self.reader = new_reader()
        self._file: LogFile | None = None
        self._identity: tuple[int, int] | None = None  # of the file that our place is in
        self._at = 0
        self._mark = b""  # the bytes just before our place
        self._gone = False

    def begin(self, tail: int | None, match: Match) -> Iterator[LogLine]:
        """Open the file if it is there, and skip to its last ``tail`` passing lines, which are given."""
        self._open()
        if self._file is None or tail is None:
            return
        end = self._file.size()
        lines, self.reader = last_lines(self._file, end, tail, self._new_reader, match, finish=False)
        yield from lines
        self._at = end
        self._remember(b"".join(self._file.blocks(max(0, end - _MARK), end)))

    def step(self) -> tuple[bool, list[LogLine]]:
        """Whether there was anything new, and the lines that it completed."""
        if self._file is None:
            return False, []
        try:
            shorter = self._file.size() < self._at
            data = self._file.read(self._at - len(self._mark), len(self._mark) + BLOCK)
        except OSError:  # removed on the server (ESTALE), or unreadable for now: look() opens it again
            self.close()
            return False, []
        if shorter or not data.startswith(self._mark):
            return True, self._restart(self._identity, "was cut, and is read again from its beginning")
        new = data[len(self._mark) :]
        if not new:
            return False, []
        self._at += len(new)
        self._remember(data)
        return True, self.reader.feed(new)

    def look(self, *, fresh: bool) -> list[LogLine]:
        """Whether the name still leads to our file, which is opened again if ``fresh``; says what became of it."""
        if self._file is None or fresh:
            return self._open()
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            return self._vanished()
        except OSError:  # a file system that does not answer well is asked again at the next look
            return []
        if (status.st_dev, status.st_ino) != self._identity:
            return self._open()
        self._gone = False
        return []

    def close(self) -> None:
        """Let go of the file; our place in it is kept."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> list[LogLine]:
        try:
            file = LogFile(self._path)
        except FileNotFoundError:
            return self._vanished()
        if file.identity != self._identity and self._unread():
            file.close()  # first what was written to the old one while we slept
            return []
        # the old one is closed only now: while it was open, its number could not go to another file
        self.close()
        self._file = file
        self._gone = False
        if self._identity in (None, file.identity):
            self._identity = file.identity
            return []
        return self._restart(file.identity, "was replaced, and the new one is read from its beginning")

    def _unread(self) -> bool:
        try:
            return self._file is not None and self._file.size() > self._at
        except OSError:
            return False

    def _vanished(self) -> list[LogLine]:
        # the file stays open: what is still written to it is read
        if self._identity is None or self._gone:
            return []
        self._gone = True
        return [self._notice("is gone; waiting for it to come back")]

    def _restart(self, identity: tuple[int, int] | None, what: str) -> list[LogLine]:
        unfinished = self.reader.end()
        self.reader = self._new_reader()
        self._identity, self._at, self._mark = identity, 0, b""
        return [*unfinished, self._notice(what)]

    def _notice(self, what: str) -> LogLine:
        return LogLine(self._stream, None, f"the log {self._path.name} {what}", notice=True)

    def _remember(self, data: bytes) -> None:
        # Zeros are left out: on NFS they may be a hole that another machine has yet to fill.
        mark = data[-_MARK:]
        self._mark = mark[mark.rfind(b"\0") + 1 :]
