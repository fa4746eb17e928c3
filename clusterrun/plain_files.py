"""Read settings and templates: plain files up to a size, written by nobody but the user or root."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from pathlib import Path

LIMIT = 256_000
"""Bytes that a profile, job file or template may have: it is some pages of text, so more is a mistake."""


def read_plain(path: Path, *, trusted: bool = True) -> bytes:
    """Return the bytes of a plain file of at most ``LIMIT`` bytes.

    With ``trusted`` it must also be one that no other user could have written. Raises OSError, whose ``strerror``
    says why a file is refused.
    """
    with open(path, "rb", opener=lambda name, _: _open(Path(name), trusted=trusted)) as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        if trusted and (why := why_not(info, os.getuid())):
            raise PermissionError(errno.EPERM, why, str(path))
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise OSError(errno.EFBIG, f"larger than {LIMIT // 1000} kB", str(path))
    return data


def why_not(info: os.stat_result, me: int) -> str:
    """The reason in a file's owner and mode: it must be mine or root's, and nobody else's to write.

    A group may write it where it is the owner's own private group (many sites' umask is 002).
    """
    if info.st_uid not in (me, 0):
        return f"it belongs to {_user(info.st_uid)}"
    if info.st_mode & stat.S_IWOTH:
        return "others may write it (chmod o-w)"
    if info.st_mode & stat.S_IWGRP and not _is_private(info.st_gid, info.st_uid):
        return "its group may write it (chmod g-w)"
    return ""


def _open(path: Path, *, trusted: bool) -> int:
    """Open a file for reading; a FIFO or a device does not block.

    A link is followed where its owner could have written the file as well: configuration is often linked from a folder
    under version control. The link of another user may name any file of mine.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    owner = path.lstat().st_uid
    if trusted and owner not in (os.getuid(), 0):
        raise PermissionError(errno.EPERM, f"the link belongs to {_user(owner)}", str(path))
    return os.open(path, flags)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _is_private(gid: int, uid: int) -> bool:
    try:
        group, owner = grp.getgrgid(gid), pwd.getpwuid(uid)
    except KeyError:
        return False
    return group.gr_name == owner.pw_name and owner.pw_gid == gid and set(group.gr_mem) <= {owner.pw_name}
