"""The file that a local job's supervisor keeps locked while it is alive; others write a request to end into it.

    <state>/local/L7/alive            "locked" if the file system has locks; "end" after a request to end

The kernel releases the lock when the process ends. Containers on one machine see each other's locks, but not each
other's processes. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

NAME = "alive"
_LOCKED = b"locked\n"
_END = b"end\n"


def create(path: Path) -> int:
    """Create the file, locked while this process is alive; return the descriptor to keep open. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass  # a file system without locks: the file does not say "locked"
    else:
        os.write(fd, _LOCKED)
    draft.rename(path)
    return fd


def is_held(path: Path) -> bool | None:
    """Return whether the creator is alive; None without a file or without locks."""
    with _opened(path, os.O_RDONLY) as fd:
        if fd is None or not os.pread(fd, 64, 0).startswith(_LOCKED):
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        return False


def request_end(path: Path) -> None:
    """Request the creator to end, wherever it runs. A second request keeps the time of the first. Raises OSError."""
    if end_requested_at(path) is None:
        with _opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as fd:
            if fd is None:
                raise OSError(f"{path} is not a regular file")
            os.write(fd, _END)


def end_requested_at(path: Path) -> float | None:
    """Return when the creator was requested to end, in epoch seconds; None if it was not.

    The file is opened each time, so that a network file system queries its server.
    """
    with _opened(path, os.O_RDONLY) as fd:
        is_requested = fd is not None and os.pread(fd, 64, 0).endswith(_END)
        return os.fstat(fd).st_mtime if is_requested and fd is not None else None


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int | None]:
    """Yield the file's descriptor; None if it cannot be opened or is not a plain file."""
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError:
        yield None
        return
    try:
        yield fd if stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        os.close(fd)
