"""Following a job's two logs while they are written, on a file system that may lag.

The files may appear late, be cut and begin again, be replaced or vanish, and another machine may
have written bytes that this one does not see until it opens the file again (NFS). Each is met
without losing or repeating a line; what happened to the file is said in a line marked ``notice``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from clusterrun.logs.files import BLOCK, LogFile, NotTheJobs
from clusterrun.logs.lines import LogLine, Stream
from clusterrun.logs.reading import Reader, begun_at, last_lines, line_reader
from clusterrun.logs.wanted import LineFilter, Notice, Source, Streams

POLL = 0.1
"""Seconds between looks at files in which nothing more is to be read."""
REOPEN = 30.0
"""Seconds without anything new after which a file is opened again: a network file system then asks its server."""
GRACE = 2.0
"""Seconds of silence after the end of the job before the end of its logs is believed."""
_LATE = 30.0  # ... and the most we go on for, where something that outlived the job still writes
_MARK = 64  # bytes before our place that must still be there

T = TypeVar("T")


@dataclass(frozen=True)
class Track(Generic[T]):
    """A file to follow: what reads it; and from its end, where it is there already, what is shown of it first."""

    source: Source
    stream: Stream
    new_reader: Callable[[], Reader[T]]
    begin: Callable[[LogFile, int], tuple[int, Iterable[T], Reader[T]]] | None = None


def follow(
    paths: tuple[Path, Path | None],
    *,
    stop: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
    poll: float = POLL,
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
    line is given once its newline has come, or at the end; of a progress bar a state now and then, and
    the last. Times in seconds, counted by our own sleeps. Raises RequestError where a log is not a plain
    file, also where it is replaced by one later.
    """
    source = Source(*paths, world_size=world_size, ranks=None if ranks is None else frozenset(ranks))
    yield from follow_lines(
        source,
        LineFilter(stream, grep),
        stop=stop,
        sleep=sleep,
        now=now,
        poll=poll,
        tail=tail,
        reopen=reopen,
        grace=grace,
    )


def follow_lines(
    source: Source,
    want: LineFilter,
    *,
    stop: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
    poll: float = POLL,
    tail: int | None = None,
    reopen: float = REOPEN,
    grace: float = GRACE,
) -> Iterator[LogLine]:
    """``follow`` of a source."""

    def track(stream: Stream) -> Track[LogLine]:
        def new_reader() -> Reader[LogLine]:
            return line_reader(stream, source, want)

        def begin(file: LogFile, end: int) -> tuple[int, Iterable[LogLine], Reader[LogLine]]:
            lines, reader, _ = last_lines(file, end, tail or 0, new_reader, finish=False)
            return end, lines, reader

        return Track(source, stream, new_reader, None if tail is None else begin)

    tracks = [track(stream) for stream, _ in source.files(want.stream)]
    for item in follow_tracks(tracks, stop=stop, sleep=sleep, now=now, poll=poll, reopen=reopen, grace=grace):
        yield LogLine(item.stream, None, item.text, notice=True) if isinstance(item, Notice) else item


def beginning_at(
    new_reader: Callable[[], Reader[T]], at: int
) -> Callable[[LogFile, int], tuple[int, Iterable[T], Reader[T]]]:
    """For ``Track.begin``: from offset ``at`` on; from the beginning where the file is shorter, as it was cut then."""

    def begin(file: LogFile, end: int) -> tuple[int, Iterable[T], Reader[T]]:
        start = at if at <= end else 0
        return start, [], begun_at(file, start, new_reader())

    return begin


def follow_tracks(
    tracks: Sequence[Track[T]],
    *,
    stop: Callable[[], bool],
    sleep: Callable[[float], None],
    now: Callable[[], float],
    poll: float = POLL,
    reopen: float = REOPEN,
    grace: float = GRACE,
) -> Iterator[T | Notice]:
    """What the readers make of files as they grow, until ``stop()``, which is asked when there is no more to read."""
    logs = [_Followed(track) for track in tracks]
    idle = 0.0  # since the files were last opened
    after: float | None = None  # since stop() said yes
    quiet = 0.0
    try:
        for log in logs:
            yield from log.begin()
        while True:
            most = 0
            for log in logs:  # a block of each in turn, so that neither waits for the other
                count, items = log.step()
                most = max(most, count)
                yield from items
            yield from _late(logs, now())
            quiet = 0.0 if most else quiet
            if most >= BLOCK:
                continue
            if after is None and stop():
                after, quiet = 0.0, 0.0
            elif after is not None and (after >= _LATE or (quiet >= grace and not most)):
                break
            else:
                sleep(poll)
                idle, quiet = 0.0 if most else idle + poll, quiet + poll
                after = None if after is None else after + poll
            fresh = after is not None or idle >= reopen
            idle = 0.0 if fresh else idle
            for log in logs:
                yield from log.look(fresh=fresh)
        for log in logs:
            yield from log.reader.end()
    finally:
        for log in logs:
            log.close()


def _late(logs: Sequence[_Followed[T]], now: float) -> Iterator[T]:
    for log in logs:
        yield from log.reader.late(now)


class _Followed(Generic[T]):
    """One file that is followed: our place in it, and how to tell that it is still the same file."""

    def __init__(self, track: Track[T]) -> None:
        self._track = track
        self._source = track.source
        self._path = dict(track.source.files("both"))[track.stream]
        self.reader = track.new_reader()
        self._file: LogFile | None = None
        self._identity: tuple[int, int] | None = None  # of the file that our place is in
        self._at = 0
        self._mark = b""  # the bytes just before our place
        self._gone = False
        self._refused = False

    def begin(self) -> Iterator[T | Notice]:
        """Open the file if it is there, and go to the place where following it begins."""
        yield from self._open()
        if self._file is None or self._track.begin is None:
            return
        self._at, items, self.reader = self._track.begin(self._file, self._file.size())
        yield from items
        self._remember(b"".join(self._file.blocks(max(0, self._at - _MARK), self._at)))

    def step(self) -> tuple[int, Sequence[T | Notice]]:
        """How many bytes were new, and the items that they completed."""
        if self._file is None:
            return 0, []
        try:
            shorter = self._file.size() < self._at
            data = self._file.read(self._at - len(self._mark), len(self._mark) + BLOCK)
        except OSError:  # removed on the server (ESTALE), or unreadable for now: look() opens it again
            self.close()
            return 0, []
        if shorter or not data.startswith(self._mark):
            return 1, self._restart(self._identity, "was cut, and is read again from its beginning")
        new = data[len(self._mark) :]
        if not new:
            return 0, []
        self._at += len(new)
        self._remember(data)
        return len(new), self.reader.feed(new)

    def look(self, *, fresh: bool) -> Sequence[T | Notice]:
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

    def _open(self) -> Sequence[T | Notice]:
        try:
            file = self._source.open(self._track.stream)
        except FileNotFoundError:
            return self._vanished()
        except NotTheJobs as error:
            said, self._refused = self._refused, True
            return [] if said else [Notice(error.message, self._track.stream)]
        if file.identity != self._identity and self._unread():
            file.close()  # first what was written to the old one while we slept
            return []
        # the old one is closed only now: while it was open, its number could not go to another file
        self.close()
        self._file = file
        self._source = replace(self._source, begin=(file.begin, file.begin))  # as it was seen first
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

    def _vanished(self) -> Sequence[T | Notice]:
        # the file stays open: what is still written to it is read
        if self._identity is None or self._gone:
            return []
        self._gone = True
        return [self._notice("is gone; waiting for it to come back")]

    def _restart(self, identity: tuple[int, int] | None, what: str) -> Sequence[T | Notice]:
        unfinished = self.reader.end()
        self.reader = self._track.new_reader()
        self._identity, self._at, self._mark = identity, 0, b""
        self._source = replace(self._source, begin=(0, 0))  # what stood before the job's first byte is gone too
        if self._file is not None:
            self._file.begin = 0
        return [*unfinished, self._notice(what)]

    def _notice(self, what: str) -> Notice:
        return Notice(f"the log {self._path.name} {what}", self._track.stream)

    def _remember(self, data: bytes) -> None:
        # Zeros are left out: on NFS they may be a hole that another machine has yet to fill.
        mark = data[-_MARK:]
        self._mark = mark[mark.rfind(b"\0") + 1 :]
