"""Follow a job's two logs while they are written, on a file system that may lag.

A file may appear late, be truncated, replaced or removed. On NFS, another machine may have written bytes that this one
sees only after it opens the file again. No line is lost or repeated; a ``Notice`` says what happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from clusterrun.logs.files import BLOCK, LogFile, NotTheJobs, Source, Stream
from clusterrun.logs.reading import Reader

_LATE = 30.0  # seconds after the end of the job: no longer, even if a process that outlived it still writes
_MARK = 64  # bytes before the offset that must not change

T = TypeVar("T")
Begin = Callable[[LogFile, int], tuple[int, Iterable[T], Reader[T]]]


class Notice(NamedTuple):
    """A message of clusterrun about a followed file."""

    text: str
    stream: Stream = "out"


@dataclass(frozen=True)
class Timing:
    """How long a follower waits, in seconds, and by which clock."""

    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    poll: float = 0.1
    """Between two reads of files without new bytes."""
    reopen: float = 30.0
    """Without new bytes, until a file is opened again: a network file system then queries its server."""
    grace: float = 2.0
    """Without new bytes after the end of the job, until its logs are complete."""


def follow_files(
    files: Sequence[FollowedFile[T]], *, stop: Callable[[], bool], timing: Timing,
    first: Sequence[tuple[FollowedFile[T], int]] = (),
) -> Iterator[T | Notice]:  # fmt: skip
    """Yield the items of files as they grow, until ``stop()``, which is called only when nothing is new.

    ``first`` are files and offsets: what comes before the rest, in this order.
    """
    pause = _Pause(stop, timing)
    try:
        for file in files:
            yield from file.begin()
        for file, end in first:
            yield from _read_to(file, end)
        while True:
            most = yield from _step_each(files)
            now = timing.now()
            for file in files:
                yield from file.late(now)
            if most >= BLOCK:
                continue
            if pause.ends(most):
                break
            reopen = pause.wait()
            for file in files:
                yield from file.check(reopen=reopen)
        for file in files:
            yield from file.end()
    finally:
        for file in files:
            file.close()


class _Pause:
    """Waits between two reads of files, and decides when nothing more will come; all in seconds."""

    def __init__(self, stop: Callable[[], bool], timing: Timing) -> None:
        self._stop, self._timing = stop, timing
        self._idle = 0.0  # since the last new bytes, or since the files were last opened
        self._quiet = 0.0  # since the last new bytes, or since stop() was true
        self._stopped: float | None = None  # since stop() was true

    def ends(self, count: int) -> bool:
        """Return whether the job has ended and its logs are complete; ``count`` new bytes were just read."""
        if count:
            self._idle = self._quiet = 0.0
        if self._stopped is None:
            return False
        return self._stopped >= _LATE or (not count and self._quiet >= self._timing.grace)

    def wait(self) -> bool:
        """Wait until the next read, but not when ``stop()`` becomes true; return whether to open files again."""
        if self._stopped is None and self._stop():
            self._stopped = self._quiet = 0.0
        else:
            self._timing.sleep(self._timing.poll)
            self._idle += self._timing.poll
            self._quiet += self._timing.poll
            if self._stopped is not None:
                self._stopped += self._timing.poll
        if self._stopped is None and self._idle < self._timing.reopen:
            return False
        self._idle = 0.0
        return True


def _step_each(files: Sequence[FollowedFile[T]]) -> Generator[T | Notice, None, int]:
    """Read one block of each file, so that none waits for another; return the most new bytes of one."""
    most = 0
    for file in files:
        count, items = file.step()
        most = max(most, count)
        yield from items
    return most


def _read_to(file: FollowedFile[T], end: int) -> Iterator[T | Notice]:
    count = 1
    while count:
        count, items = file.step(end)
        yield from items


class FollowedFile(Generic[T]):
    """A file that is followed: the offset of the next byte, and what shows that it is still the same file."""

    def __init__(
        self, source: Source, stream: Stream, new_reader: Callable[[], Reader[T]], begin: Begin[T] | None = None
    ) -> None:
        """``begin`` gets a file that exists and its size; it returns the first offset, items shown before, a reader."""
        self._source, self._stream, self._new_reader, self._begin = source, stream, new_reader, begin
        self._path = dict(source.files("both"))[stream]
        self.reader = new_reader()
        self._file: LogFile | None = None
        self._identity: tuple[int, int] | None = None  # of the file that the offset is in
        self._at = 0
        self._mark = b""  # the bytes just before the offset
        self._gone = False
        self._refused = False

    def begin(self) -> Iterator[T | Notice]:
        """Open the file if it exists, and yield the items to show of it first."""
        yield from self._open()
        if self._file is None or self._begin is None:
            return
        self._at, items, self.reader = self._begin(self._file, self._file.size())
        yield from items
        self._remember(b"".join(self._file.blocks(max(0, self._at - _MARK), self._at)))

    def step(self, end: int | None = None) -> tuple[int, Sequence[T | Notice]]:
        """Read one block, none of it after ``end``. Returns the number of new bytes and the items they completed."""
        room = BLOCK if end is None else min(BLOCK, end - self._at)
        if self._file is None or room <= 0:
            return 0, []
        try:
            shorter = self._file.size() < self._at
            data = self._file.read(self._at - len(self._mark), len(self._mark) + room)
        except OSError:  # removed on the server (ESTALE), or unreadable for now: check() opens it again
            self.close()
            return 0, []
        if shorter or not data.startswith(self._mark):
            return 1, self._restart(self._identity, "was truncated; reading it from the start")
        new = data[len(self._mark) :]
        if not new:
            return 0, []
        self._at += len(new)
        self._remember(data)
        return len(new), self.reader.feed(new)

    def late(self, now: float) -> Sequence[T | Notice]:
        """Return the items that have waited long enough."""
        return self.reader.late(now)

    def end(self) -> Sequence[T | Notice]:
        """Return the unfinished items, once nothing more will be read."""
        return self.reader.end()

    def check(self, *, reopen: bool) -> Sequence[T | Notice]:
        """Check that the path still names this file; return a Notice if not. With ``reopen``, open it again."""
        if self._file is None or reopen:
            return self._open()
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            return self._vanished()
        except OSError:  # the file system may recover: check again next time
            return []
        if (status.st_dev, status.st_ino) != self._identity:
            return self._open()
        self._gone = False
        return []

    def close(self) -> None:
        """Close the file, but keep the offset."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> Sequence[T | Notice]:
        try:
            file = self._source.open(self._stream)
        except FileNotFoundError:
            return self._vanished()
        except NotTheJobs as error:
            noted, self._refused = self._refused, True
            return [] if noted else [Notice(error.message, self._stream)]
        if file.identity != self._identity and self._unread():
            file.close()  # first read what was written to the old one during the last sleep
            return []
        # the old one is closed only now: while it is open, no other file can get its inode number
        self.close()
        self._file = file
        self._source = replace(self._source, begin=(file.begin, file.begin))  # as when it was first opened
        self._gone = False
        if self._identity in (None, file.identity):
            self._identity = file.identity
            return []
        return self._restart(file.identity, "was replaced; reading the new file from the start")

    def _unread(self) -> bool:
        try:
            return self._file is not None and self._file.size() > self._at
        except OSError:
            return False

    def _vanished(self) -> Sequence[T | Notice]:
        # the file stays open, as the job may still write to it
        if self._identity is None or self._gone:
            return []
        self._gone = True
        return [self._notice("was removed; waiting for it to reappear")]

    def _restart(self, identity: tuple[int, int] | None, what: str) -> Sequence[T | Notice]:
        unfinished = self.reader.end()
        self.reader = self._new_reader()
        self._identity, self._at, self._mark = identity, 0, b""
        self._source = replace(self._source, begin=(0, 0))  # the bytes before the job's first one are gone too
        if self._file is not None:
            self._file.begin = 0
        return [*unfinished, self._notice(what)]

    def _notice(self, what: str) -> Notice:
        return Notice(f"the log {self._path.name} {what}", self._stream)

    def _remember(self, data: bytes) -> None:
        # Without zeros: on NFS they may be a hole that another machine fills later.
        mark = data[-_MARK:]
        self._mark = mark[mark.rfind(b"\0") + 1 :]
