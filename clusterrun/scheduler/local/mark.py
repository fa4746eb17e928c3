"""The mark of a local job's supervisor: a file that it keeps locked while it lives, and in which others ask it to end.

    <state>/local/L7/alive            "locked" where the file system has locks; "end" once somebody asked

The kernel drops the lock with the process, however that ends. Containers on one machine see each other's locks, though
not each other's processes. Standard library only.
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


def leave(path: Path) -> int:
    """Make the file and lock it while this process lives; returns the descriptor to keep open. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass  # a file system without locks: nothing is claimed of them
    else:
        os.write(fd, _LOCKED)
    draft.rename(path)
    return fd


def is_held(path: Path) -> bool | None:
    """Whether the maker lives; None where that cannot be known, for want of a file or of locks."""
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


def ask_to_end(path: Path) -> None:
    """Ask the maker to end, wherever it runs; a second request keeps the time of the first. Raises OSError."""
    if asked_at(path) is None:
        with _opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as fd:
            if fd is None:
                raise OSError(f"{path} is not a plain file")
            os.write(fd, _END)


def asked_at(path: Path) -> float | None:
    """When the maker was asked to end, in epoch seconds; None where it was not.

    The file is opened afresh, so that a network file system asks its server.
    """
    with _opened(path, os.O_RDONLY) as fd:
        asked = fd is not None and os.pread(fd, 64, 0).endswith(_END)
        return os.fstat(fd).st_mtime if asked and fd is not None else None


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int | None]:
    """The file's descriptor; None where it cannot be opened or is not a plain file."""
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError:
        yield None
        return
    try:
        yield fd if stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        os.close(fd)
