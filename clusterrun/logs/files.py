"""Name a job's two log files, and open them safely."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from clusterrun.errors import ClusterrunError, RequestError
from clusterrun.system.safe_files import user_name

BLOCK = 64 * 1024
"""Bytes read at a time. Twice as fast as 256 KiB: from 128 KiB on, each buffer is new memory from the kernel."""


class NotTheJobs(RequestError):
    """A log belongs to a user who does not own the job, so it may be planted."""


class LogFile:
    """An open log, from its job's first byte on. ``identity`` is equal each time the same file is opened.

    ``begin`` is the offset of that byte in the file; all other offsets count from it.
    """

    def __init__(self, path: Path, begin: int = 0, owners: Collection[int] | None = None) -> None:
        """Open it for reading. Raises FileNotFoundError, and RequestError for anything but a readable regular file.

        A log folder may be shared, so the name may be planted: no link is followed, and no FIFO or device is opened.
        With ``owners``, raises NotTheJobs for a file of any other uid. A file shorter than ``begin`` was truncated, and
        is read from its start.
        """
        try:
            _check_regular(path, path.lstat())  # opening a device can have effects
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (FileNotFoundError, RequestError):
            raise
        except OSError as error:
            raise _refused(path, f"cannot be opened: {error.strerror}") from error
        self.path = path
        try:
            status = os.fstat(self._fd)
            _check_regular(path, status)  # it may have been replaced since
            if owners is not None and status.st_uid not in owners:
                owner = user_name(status.st_uid)
                raise _refused(path, f"is not read: it belongs to {owner}, who does not own the job", NotTheJobs)
        except BaseException:
            self.close()
            raise
        self.identity = status.st_dev, status.st_ino
        self.begin = begin if begin <= status.st_size else 0

    def size(self) -> int:
        """Return its size in bytes; negative if it was truncated before ``begin``."""
        return os.fstat(self._fd).st_size - self.begin

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
        kind = next((word for is_kind, word in _KINDS if is_kind(status.st_mode)), "something else")
        raise _refused(path, f"is not read: it is {kind}, not a plain file")


def _refused(path: Path, why: str, kind: type[RequestError] = RequestError) -> RequestError:
    return kind(f"the log {path} {why}", hint=f"ls -l {shlex.quote(str(path))}")


_KINDS: list[tuple[Callable[[int], bool], str]] = [
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
]
