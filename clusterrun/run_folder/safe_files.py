"""Open folders and files that another user may have written.

Below ``.clusterrun`` a path is opened folder by folder, each relative to the one before, and no symbolic link is
followed. Everything in a run's folder must belong to the owner of that folder, according to the file system. Only plain
files are read, up to a size limit. Settings and templates are read if only the user or root can write them. All
functions raise OSError for a file or folder that breaks a rule.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from . import atomic

#: The folder of records in a project.
RECORDS = ".clusterrun"
#: The maximum size of a record, in bytes; real ones have up to 40 KiB.
LIMIT = 4 * 1024 * 1024
#: The maximum size of a profile, job file or template, in bytes; a larger file is a mistake.
SETTINGS_LIMIT = 256_000
#: The depth of a run's folder below the project: .clusterrun/runs/RUN_ID.
_RUN_DEPTH = 3
_PATH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LINKS = 40  # the kernel's limit


# -- reading -------------------------------------------------------------------------------------------------------


def read_bytes(path: Path, limit: int = LIMIT, *, owner: int | None = None) -> bytes:
    """Return the bytes of a plain file of at most ``limit`` bytes; with ``owner`` it must belong to that uid."""
    with open_folder(path.parent) as folder:
        return folder.read(path.name, limit, owner=owner)


@contextlib.contextmanager
def open_file(path: Path, *, owner: int | None = None) -> Iterator[int]:
    """Yield the descriptor of a plain file that is open for reading."""
    with open_folder(path.parent) as folder:
        descriptor, _ = folder.open_file(path.name, owner=owner)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def list_names(path: Path) -> list[str]:
    """Return the names in a folder, in no order."""
    with open_folder(path) as folder:
        return folder.names()


def owner_of(path: Path) -> int:
    """Return the uid of a folder's owner."""
    with open_folder(path) as folder:
        return os.fstat(folder.descriptor).st_uid


def is_mine(path: Path) -> bool:
    """Return whether a file, folder or link belongs to this user; no link is followed."""
    try:
        return path.lstat().st_uid == os.getuid()
    except OSError:
        return False


class Folder(NamedTuple):
    """An open folder: its path, its descriptor, and the uid of the owner of its run (None outside a run).

    ``holds_runs``: each folder in it is a run's.
    """

    path: Path
    descriptor: int
    owner: int | None
    holds_runs: bool = False

    def names(self) -> list[str]:
        """Return the names in the folder, in no order."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor)
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def owner_of(self, name: str) -> int:
        """Return the uid of the owner of a name in the folder; no link is followed."""
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_uid

    def changed_at(self) -> int:
        """Return when a name in the folder was last made, replaced or removed, in nanoseconds since 1970."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor)
        try:
            return os.fstat(descriptor).st_mtime_ns  # of a folder that was opened for reading: NFS asks its server
        finally:
            os.close(descriptor)

    def read(self, name: str, limit: int = LIMIT, *, owner: int | None = None) -> bytes:
        """Return the bytes of a plain file in the folder; see :func:`read_bytes`."""
        descriptor, size = self.open_file(name, owner=owner)
        try:
            if size > limit:
                raise OSError(errno.EFBIG, "the file is too large", str(self.path / name))
            data = os.read(descriptor, size)
            while len(data) < size and (more := os.read(descriptor, size - len(data))):
                data += more
            return data
        finally:
            os.close(descriptor)

    def open_file(self, name: str, *, owner: int | None = None) -> tuple[int, int]:
        """Return the descriptor of a plain file in the folder, for the caller to close, and its size in bytes."""
        descriptor = os.open(name, os.O_RDONLY | _PLAIN, dir_fd=self.descriptor)
        try:
            info = os.fstat(descriptor)
            _check_plain(info, self.owner if owner is None else owner, self.path, name)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor, info.st_size

    @contextlib.contextmanager
    def open_folder(self, name: str) -> Iterator[Folder]:
        """Yield a folder in this folder, which holds runs or is of a run."""
        descriptor = os.open(name, _PATH | os.O_NOFOLLOW, dir_fd=self.descriptor)
        try:
            info, path = os.fstat(descriptor), self.path / name
            owner = info.st_uid if self.holds_runs else self.owner
            _check_owner(info, owner, path)
            yield Folder(path, descriptor, owner)
        finally:
            os.close(descriptor)


# -- settings and templates -----------------------------------------------------------------------------------------


def read_plain(path: Path, *, trusted: bool = True, limit: int = SETTINGS_LIMIT) -> bytes:
    """Return the bytes of a plain file of at most ``limit`` bytes.

    With ``trusted`` no other user may be able to write it. Raises OSError, with the reason in ``strerror``.
    """
    with open(path, "rb", opener=lambda name, _: _open_setting(Path(name), trusted=trusted)) as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if trusted and (why := why_untrusted(info, os.getuid())):
            raise PermissionError(errno.EPERM, why, str(path))
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit // 1000} kB", str(path))
    return data


def _open_setting(path: Path, *, trusted: bool) -> int:
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


# -- writing -------------------------------------------------------------------------------------------------------


def write(path: Path, data: bytes, mode: int = 0o600, *, sync_folder: bool = True) -> None:
    """Replace a file in a folder of the user; see ``atomic``.

    Without ``sync_folder`` a crash may leave the old content, until another write syncs the folder.
    """
    with _own_folder(path.parent) as folder:
        with atomic.replacing_in(folder, path.name, mode) as file:
            file.write(data)
        if sync_folder:
            atomic.sync_names(folder)


def append(path: Path, data: bytes) -> None:
    """Append to one of the user's files in one write, so that lines of several processes do not mix."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _PLAIN
    with _own_folder(path.parent) as folder:
        descriptor = os.open(path.name, flags, 0o600, dir_fd=folder)
    try:
        _check_plain(os.fstat(descriptor), os.getuid(), path.parent, path.name)
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def remove(folder: Path, names: Iterable[str]) -> None:
    """Remove files of a folder of the user, and wait until that is on disk; a name that is gone is no error."""
    with _own_folder(folder) as descriptor:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=descriptor)
        atomic.sync_names(descriptor)


def make_folder(path: Path, mode: int) -> None:
    """Create a folder with exactly ``mode``, or add the group permissions of ``mode`` to an existing one."""
    with open_folder(path.parent) as parent:
        made = False
        with contextlib.suppress(FileExistsError):
            os.mkdir(path.name, 0o700, dir_fd=parent.descriptor)
            made = True
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, dir_fd=parent.descriptor)
    try:
        info = os.fstat(descriptor)
        _check_owner(info, os.getuid(), path)
        now = stat.S_IMODE(info.st_mode)
        # keep the set-group-id bit of a group's folder, which a plain chmod would remove
        new = mode | now & stat.S_ISGID if made else now | mode & 0o050
        if new != now:
            os.fchmod(descriptor, new)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _own_folder(path: Path) -> Iterator[int]:
    with open_folder(path) as folder:
        _check_owner(os.fstat(folder.descriptor), os.getuid(), path)
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder.descriptor)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[Folder]:
    """Yield a folder; below ``.clusterrun`` no link is followed, and the folders of a run belong to its owner."""
    above, parts = _split_at_records(path)
    descriptor, owner = os.open(above, _PATH), None
    try:
        for depth, name in enumerate(parts, 1):
            below = os.open(name, _PATH | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
            if depth >= _RUN_DEPTH and parts[1] == "runs":
                info = os.fstat(descriptor)
                owner = info.st_uid if owner is None else owner
                _check_owner(info, owner, path)
        yield Folder(path, descriptor, owner, parts[1:] == ("runs",))
    except OSError as error:  # calls relative to a descriptor report only the last name
        if not str(error.filename or "").startswith("/"):
            error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def _split_at_records(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the path above the last ``.clusterrun`` in it, and the names from there on."""
    parts = path.parts
    start = len(parts) - 1 - parts[::-1].index(RECORDS) if RECORDS in parts else len(parts)
    if ".." in parts[start:]:
        raise OSError(errno.EINVAL, "the path of a record must not contain '..'", str(path))
    if not _is_path(path):
        raise OSError(errno.EINVAL, "not a path", repr(str(path)))
    return "/".join(parts[:start]) or ".", parts[start:]


def _is_path(path: Path) -> bool:
    """Return whether a path can be opened: without a NUL, and without halves of a pair that stand for no byte."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _check_plain(info: os.stat_result, owner: int | None, folder: Path, name: str) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(folder / name))
    if owner is not None and info.st_uid != owner:
        _check_owner(info, owner, folder / name)


def _check_owner(info: os.stat_result, owner: int | None, path: Path) -> None:
    if owner is not None and info.st_uid != owner:
        raise PermissionError(errno.EPERM, f"owned by {user_name(info.st_uid)}", str(path))


# -- who can change a path -----------------------------------------------------------------------------------------


def find_weakness(path: Path) -> tuple[str, str]:
    """Return the first folder on a path, links followed, in which another user could replace the next entry.

    Return it as ``FOLDER: why`` and with the command that prevents it if there is one; both empty for a safe path. In
    a folder with the sticky bit users cannot replace each other's entries. A missing path counts as safe.
    """
    at, ahead, links = Path("/"), list(reversed(path.absolute().parts[1:])), 0
    while True:
        try:
            info = at.lstat()
        except FileNotFoundError:
            return "", ""
        except OSError as error:
            return f"{at}: cannot check the permissions: {error.strerror}", ""
        if stat.S_ISLNK(info.st_mode):
            links += 1
            if info.st_uid not in _trusted() or links > _LINKS:
                return f"{at}: the symbolic link is owned by {user_name(info.st_uid)}", ""
            ahead += reversed((at.parent / at.readlink()).parts[1:])
            at = Path("/")
        elif why := _why_writable(info):
            return f"{at}: {why}", _fix_of(at, info)
        if not ahead:
            return "", ""
        name = ahead.pop()
        at = at.parent if name == ".." else at / name


def _why_writable(info: os.stat_result) -> str:
    """Return why other users can replace entries of a folder, by its owner and mode, or an empty text."""
    if not stat.S_ISDIR(info.st_mode):
        return "not a folder"
    is_sticky = info.st_uid in _trusted() and info.st_mode & stat.S_ISVTX
    return "" if is_sticky else why_untrusted(info, os.getuid(), trusted=_trusted()).partition(" (")[0]


def _fix_of(folder: Path, info: os.stat_result) -> str:
    """Return the command with which the owner of a folder takes its other users' right to write, if they have it."""
    bits = ("g" if info.st_mode & stat.S_IWGRP else "") + ("o" if info.st_mode & stat.S_IWOTH else "")
    is_mendable = stat.S_ISDIR(info.st_mode) and info.st_uid in _trusted()
    return f"chmod {bits}-w {folder}" if is_mendable else ""


def why_untrusted(info: os.stat_result, me: int, trusted: frozenset[int] = frozenset()) -> str:
    """Return why a file or folder is not trusted, or an empty text.

    It must belong to the user or root, and nobody else may write it, except the owner's private group (many sites'
    umask is 002).
    """
    if info.st_uid not in trusted | {me, 0}:
        return f"owned by {user_name(info.st_uid)}"
    if info.st_mode & stat.S_IWOTH:
        return "other users have write access (chmod o-w)"
    if info.st_mode & stat.S_IWGRP and not _is_private(info.st_gid, info.st_uid):
        return "its group has write access (chmod g-w)"
    return ""


def closed_to_group(path: Path) -> Path | None:
    """Return the first folder above a path that its group cannot enter, or None."""
    for folder in reversed(path.absolute().parents):
        with contextlib.suppress(OSError):
            if not folder.stat().st_mode & 0o011:
                return folder
    return None


@functools.cache
def user_name(uid: int) -> str:
    """Return a user's name, or ``user 1234`` if the uid has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"user {uid}"


def _trusted() -> frozenset[int]:
    # in a container without root's uid, root's files belong to the owner of "/"
    return frozenset({0, os.getuid(), Path("/").stat().st_uid})


def _is_private(gid: int, uid: int) -> bool:
    try:
        group, owner = grp.getgrgid(gid), pwd.getpwuid(uid)
    except KeyError:
        return False
    return group.gr_name == owner.pw_name and owner.pw_gid == gid and set(group.gr_mem) <= {owner.pw_name}
