"""Write files that appear whole: under a temporary name, synced to disk, renamed into place, their folder synced.

This is the only place that replaces a file. All functions raise OSError; no temporary file is left then.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

Check = Callable[[], None]
"""Called directly before a name changes; it raises where this process may no longer write."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOST = (errno.EIO, errno.ENOSPC, errno.EDQUOT)


def anyone_may_write() -> None:
    """Check nothing."""


def temporary_name(name: str) -> str:
    """Return a hidden name that no other writer uses; it says which process of which host writes."""
    return f".tmp-{name}-{os.uname().nodename}-{os.getpid()}.{os.urandom(4).hex()}"


@contextmanager
def replacing(
    path: Path, mode: int | None = 0o600, *, check: Check = anyone_may_write, lasting: bool = True
) -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of ``path``, a link too, when the block ends.

    Its mode is exactly ``mode``; None leaves it to the umask. Without ``lasting`` nothing is synced: a crash of the
    machine may lose the file.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with replacing_in(folder, path.name, mode, check=check, lasting=lasting) as file:
            yield file
        if lasting:
            sync_names(folder)
    finally:
        os.close(folder)


@contextmanager
def replacing_in(
    folder: int, name: str, mode: int | None = 0o600, *, check: Check = anyone_may_write, lasting: bool = True
) -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of a name in an open folder, which is not synced."""
    temporary = temporary_name(name)
    descriptor = os.open(temporary, _NEW, 0o666 if mode is None else 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if mode is not None:
                os.fchmod(descriptor, mode)
            if lasting:
                os.fsync(descriptor)
        check()
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def replace(path: Path, data: bytes, mode: int | None = 0o600, *, check: Check = anyone_may_write) -> None:
    """Replace a file, or create it, as ``replacing`` does."""
    with replacing(path, mode, check=check) as file:
        file.write(data)


def create_once(path: Path, data: bytes, mode: int | None = 0o600, *, check: Check = anyone_may_write) -> bool:
    """Create a file unless there is one; return whether this call did.

    A hard link is the exclusive create that holds on NFS and never shows a half-written file.
    """
    temporary = path.with_name(temporary_name(path.name))
    replace(temporary, data, mode)
    try:
        check()
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        return _create(path, data, mode)
    finally:
        temporary.unlink()
    sync(path.parent)
    return True


def _create(path: Path, data: bytes, mode: int | None) -> bool:
    try:
        descriptor = os.open(path, _NEW, 0o666 if mode is None else 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "wb") as file:
        if mode is not None:
            os.fchmod(descriptor, mode)
        file.write(data)
    return True


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk; a folder only where its file system can do that."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if path.is_dir():
            sync_names(descriptor)
        else:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_names(folder: int) -> None:
    """Wait until the names in an open folder are on disk, where its file system can do that."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno in _LOST:  # else a network file system that cannot sync folders
            raise
