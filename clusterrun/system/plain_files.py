"""Read settings and templates: plain files of limited size that only the user or root can write."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from clusterrun.run_folder.safe_files import user_name, why_untrusted

LIMIT = 256_000
"""The maximum size of a profile, job file or template, in bytes; a larger file is a mistake."""


def read_plain(path: Path, *, trusted: bool = True, limit: int = LIMIT) -> bytes:
    """Return the bytes of a plain file of at most ``limit`` bytes.

    With ``trusted`` no other user may be able to write it. Raises OSError, with the reason in ``strerror``.
    """
    with open(path, "rb", opener=lambda name, _: _open(Path(name), trusted=trusted)) as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if trusted and (why := why_untrusted(info, os.getuid())):
            raise PermissionError(errno.EPERM, why, str(path))
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit // 1000} kB", str(path))
    return data


def _open(path: Path, *, trusted: bool) -> int:
    """Open a file for reading; a FIFO or a device does not block.

    A link is followed if it belongs to the user or root: configuration is often linked from a repository. Another
    user's link could point to any of the user's files.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    owner = path.lstat().st_uid
    if trusted and owner not in (os.getuid(), 0):
        raise PermissionError(errno.EPERM, f"the symbolic link is owned by {user_name(owner)}", str(path))
    return os.open(path, flags)


def written_at(path: Path) -> float:
    """Return when a file was last written, in epoch seconds; 0 if it is missing or not accessible."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
