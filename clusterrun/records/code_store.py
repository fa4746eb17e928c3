"""The saved code of runs: a store with each content once, and a folder of hard links to it for each snapshot.

``.clusterrun/snapshots/objects/`` has the files by git's id of their content (and ``x`` if executable);
``trees/<digest>/`` has a ``manifest`` and the folder ``files``. Both are written under another name first: two
submits at the same time are safe, and so is a submit that is killed. ``files`` also links to the project's other files.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.decode import Damaged, build
from clusterrun.base.units import plural
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import files, safe_files
from clusterrun.run_folder.safe_files import RECORDS

SNAPSHOTS, OBJECTS, TREES, MANIFEST, FILES = "snapshots", "objects", "trees", "manifest", "files"
NEW = ".new-"  # begins the name of what is being written
LIMIT = 500 * 1024 * 1024
"""The maximum size of a snapshot in bytes; more is data."""
_PLAIN, _EXECUTABLE, _LINK = "100644", "100755", "120000"  # git's modes
_BLOCK = 1 << 20
_NEVER_LINKED = frozenset({".git", RECORDS, "__pycache__"})
_MOST_LINKS = 10_000  # in a folder; of more names only the folders
_STORED = 1_000_000_000
"""The modification time of saved files, in epoch seconds: a file with another one was changed by a run."""
_TRIES = 3
_NO_LINKS = (errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP)  # too many links, or none on this file system


class Entry(NamedTuple):
    """A file of a snapshot: git's mode, git's id of its content (of a link: its target), and its path."""

    mode: str
    content: str
    path: str

    @property
    def is_link(self) -> bool:
        return self.mode == _LINK

    @property
    def name(self) -> str:
        """The name of the object."""
        return f"{self.content[:2]}/{self.content[2:]}{'x' * (self.mode == _EXECUTABLE)}"


class TooLarge(Exception):
    """The files exceed ``LIMIT``: their size in bytes, and the largest ones with their sizes."""

    def __init__(self, size: int, largest: list[tuple[int, str]]) -> None:
        super().__init__(size)
        self.size, self.largest = size, largest


def tree_folder(base: Path, digest: str) -> Path:
    """Return the folder of a snapshot in the project of ``base``."""
    return base / RECORDS / SNAPSHOTS / TREES / digest


def save(base: Path, root: Path, files: Iterable[tuple[str, str]]) -> str:
    """Save the files below ``root``, each a path and git's id of its content (empty: unknown); return the digest.

    ``base`` holds ``.clusterrun``. Files that are missing, and links that leave ``root``, are left out. Raises OSError,
    or TooLarge.
    """
    folder = base / RECORDS / SNAPSHOTS
    for one in (folder, folder / OBJECTS, folder / TREES):
        safe_files.make_folder(one, 0o700)
    if not os.path.lexists(ignore := base / RECORDS / ".gitignore"):
        safe_files.write(ignore, b"*\n")  # else git would look for new files among the saved ones
    found = _measure(root, files)
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):  # `clean` has deleted an object meanwhile
            entries = [_save_object(folder / OBJECTS, root, path, blob, info) for path, blob, info in found]
            digest, data = _digest(entries)
            _build(folder, digest, data, entries)
            _link_others(folder / TREES / digest / FILES, root, entries)
            return digest
    raise OSError(errno.EAGAIN, "another command is deleting saved files", str(folder))


def digest_of(root: Path, files: Iterable[tuple[str, str]]) -> str:
    """Return the digest that ``save`` would return now; nothing is written. Raises OSError, or TooLarge."""
    entries = [_identify(root, path, blob, info) for path, blob, info in _measure(root, files)]
    return _digest(entries)[0]


def _digest(entries: Iterable[Entry]) -> tuple[str, bytes]:
    """Return the digest of a snapshot, and its manifest."""
    import hashlib  # it loads OpenSSL, which `status` does without

    manifest = "".join(f"{one.mode}\0{one.content}\0{one.path}\0" for one in entries)
    data = manifest.encode("utf-8", "surrogateescape")
    return hashlib.sha256(data).hexdigest()[:20], data


def load_manifest(tree: Path) -> dict[str, Entry] | None:
    """Return the files of a snapshot by path; None if there is no such snapshot."""
    try:
        data = safe_files.read_bytes(tree / MANIFEST, 1 << 28, owner=os.getuid())
    except OSError:
        return None
    words = data.decode("utf-8", "surrogateescape").split("\0")
    entries = (Entry(*words[at : at + 3]) for at in range(0, len(words) - 2, 3))
    return {entry.path: entry for entry in entries}


def _measure(root: Path, files: Iterable[tuple[str, str]]) -> list[tuple[str, str, os.stat_result]]:
    """Return the files that exist, by path; raises TooLarge."""
    found = []
    for path, blob in sorted(files):
        if ".." in path.split("/") or path.startswith("/"):
            continue
        with suppress(FileNotFoundError, NotADirectoryError):
            info = os.lstat(root / path)
            if stat.S_ISREG(info.st_mode) or (stat.S_ISLNK(info.st_mode) and _stays_inside(root, path)):
                found.append((path, blob, info))
    total = sum(info.st_size for _, _, info in found)
    if total > LIMIT:
        raise TooLarge(total, sorted(((info.st_size, path) for path, _, info in found), reverse=True)[:3])
    return found


def _stays_inside(root: Path, path: str) -> bool:
    target = os.readlink(root / path)  # noqa: PTH115 - Path would normalize it
    inside = os.path.normpath(Path(path).parent / target)
    return not target.startswith("/") and inside.split("/")[0] != ".."


def _identify(root: Path, path: str, blob: str, info: os.stat_result) -> Entry:
    """Return the entry of a file; ``blob`` is git's id of its content, empty if unknown."""
    if stat.S_ISLNK(info.st_mode):
        return Entry(_LINK, os.readlink(root / path), path)  # noqa: PTH115
    return Entry(_mode(info), blob or _copy_whole(root / path, Path(os.devnull), blob)[0], path)


def _mode(info: os.stat_result) -> str:
    return _EXECUTABLE if info.st_mode & 0o100 else _PLAIN


def _save_object(objects: Path, root: Path, path: str, blob: str, info: os.stat_result) -> Entry:
    """Store the content of a file unless it is stored, and return its entry."""
    known = bool(blob) and _is_whole(objects / Entry(_mode(info), blob, path).name, info.st_size)
    if known or stat.S_ISLNK(info.st_mode):
        return _identify(root, path, blob, info)
    mode, temporary = _mode(info), objects / f"{NEW}{os.urandom(8).hex()}"
    try:
        content, size = _copy_whole(root / path, temporary, blob)
        entry = Entry(mode, content, path)
        place = objects / entry.name
        if not _is_whole(place, size):
            temporary.chmod(0o555 if mode == _EXECUTABLE else 0o444)
            os.utime(temporary, (_STORED, _STORED))
            place.parent.mkdir(mode=0o700, exist_ok=True)
            temporary.rename(place)
        return entry
    finally:
        temporary.unlink(missing_ok=True)


def _copy_whole(source: Path, target: Path, blob: str) -> tuple[str, int]:
    """Return what ``_copy`` does; raises OSError for a file that keeps changing. ``blob`` shows git's algorithm."""
    for _ in range(_TRIES):
        content, size = _copy(source, target, "sha256" if len(blob) == 64 else "sha1")
        if content:
            return content, size
    raise OSError(errno.EBUSY, "the file keeps changing", str(source))


def _copy(source: Path, target: Path, algorithm: str) -> tuple[str, int]:
    """Copy a file; return git's id of its content, empty if it changed meanwhile, and its size in bytes."""
    import hashlib

    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as reader, target.open("wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        digest, copied = hashlib.new(algorithm, b"blob %d\0" % size, usedforsecurity=False), 0
        while block := reader.read(_BLOCK):
            digest.update(block)
            writer.write(block)
            copied += len(block)
    return (digest.hexdigest() if copied == size else ""), size


def _is_whole(place: Path, size: int) -> bool:
    """Return whether an object is stored; a power failure may have cut it, or a run of root have changed it."""
    try:
        info = place.lstat()
    except FileNotFoundError:
        return False
    return info.st_size == size and not is_changed(info)


def is_changed(info: os.stat_result) -> bool:
    """Return whether a saved file was changed or replaced since."""
    return int(info.st_mtime) != _STORED


def _build(folder: Path, digest: str, manifest: bytes, entries: list[Entry]) -> None:
    """Make the folder of a snapshot unless it exists; raises FileNotFoundError if an object is gone."""
    tree = folder / TREES / digest
    with suppress(FileNotFoundError):
        os.utime(tree)  # `clean` keeps recently used folders
        _repair(folder, tree / FILES, entries)
        return
    new = folder / TREES / f"{NEW}{os.urandom(8).hex()}"
    try:
        files, made = new / FILES, {""}
        files.mkdir(parents=True, mode=0o700)
        for entry in entries:
            parent = entry.path.rpartition("/")[0]
            if parent not in made:
                (files / parent).mkdir(parents=True, exist_ok=True)
                made.add(parent)
            if entry.is_link:
                (files / entry.path).symlink_to(entry.content)
            else:
                _link(folder / OBJECTS / entry.name, files / entry.path)
        (new / MANIFEST).write_bytes(manifest)
        try:
            new.rename(tree)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another submit has made it
                raise
    finally:
        if os.path.lexists(new):
            import shutil  # it loads the archive formats

            shutil.rmtree(new, ignore_errors=True)


def _repair(folder: Path, files: Path, entries: Iterable[Entry]) -> None:
    """Put saved files back that a run has deleted or changed; what it has written stays beside them."""
    for entry in entries:
        path = files / entry.path
        try:
            if entry.is_link or not is_changed(path.lstat()):
                continue
            path.rename(f"{path}.changed-{os.urandom(4).hex()}")
        except (FileNotFoundError, NotADirectoryError):
            path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another submit has done it
            _link(folder / OBJECTS / entry.name, path)


def _link_others(files: Path, root: Path, entries: Iterable[Entry]) -> None:
    """Link from the saved folders to what else lies in the project's: data and outputs beside a script's own file."""
    saved: dict[str, set[str]] = {"": set()}
    for entry in entries:
        parts = entry.path.split("/")
        for depth, name in enumerate(parts):
            saved.setdefault("/".join(parts[:depth]), set()).add(name)
    for folder, names in saved.items():
        with suppress(OSError):  # deleted meanwhile
            _link_folder(files / folder, root / folder, names)


def _link_folder(files: Path, project: Path, saved: set[str]) -> None:
    with os.scandir(project) as entries:
        others = {entry.name: entry.is_dir() for entry in entries if entry.name not in saved | _NEVER_LINKED}
    with os.scandir(files) as entries:
        links = {entry.name for entry in entries if entry.is_symlink()} - saved
    for name in links - others.keys():  # gone from the project: a script may make it again
        (files / name).unlink(missing_ok=True)
    for name in others.keys() - links:
        if len(others) <= _MOST_LINKS or others[name]:
            with suppress(FileExistsError):
                (files / name).symlink_to(project / name)


def _link(place: Path, target: Path) -> None:
    try:
        os.link(place, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        target.write_bytes(place.read_bytes())
        target.chmod(place.stat().st_mode & 0o777)
        os.utime(target, (_STORED, _STORED))


RECORD, DIFF = "snapshot.json", "code.diff"
_SAVED = re.compile(r"/.*/\.clusterrun/snapshots/trees/[0-9a-f]{20}/files/", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{20}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The code of a run: the folder it was copied from, and its digest in the store.

    ``commit`` is empty before the first commit, ``branch`` if none was checked out. ``changed`` is the number of files
    that differed from the commit.
    """

    root: str
    digest: str
    commit: str = ""
    branch: str = ""
    changed: int = 0
    files: int = 0

    @property
    def line(self) -> str:
        """The code in words: ``a1b2c3d (main) + 2 changed files``."""
        commit = self.commit[:7] if self.commit else "no commit"
        branch = f" ({self.branch})" if self.branch else ""
        return f"{commit}{branch}" + (f" + {plural(self.changed, 'changed file')}" if self.changed else "")

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``snapshot.json``."""
        return {"version": 1, **asdict(self)}


def load_snapshot(run: RunRecord) -> Snapshot | None:
    """Return the code of a run; None if none was saved, or its record is damaged."""
    try:
        found = build(Snapshot, files.read_json(run.run_dir / RECORD) or {})
    except Damaged:
        return None
    return found if _DIGEST.fullmatch(found.digest) else None


def is_damaged(run: RunRecord) -> bool:
    """Return whether a run has a record of saved code that cannot be read."""
    return os.path.lexists(run.run_dir / RECORD) and load_snapshot(run) is None


def tree_of(run: RunRecord, snapshot: Snapshot) -> Path:
    """Return the folder of a run's saved code; `clean` may have deleted it."""
    return tree_folder(run.root, snapshot.digest)


def code_line(run: RunRecord | None) -> str:
    """Return the code of a run in words; empty if none was saved."""
    snapshot = load_snapshot(run) if run is not None else None
    return snapshot.line if snapshot else ""


def project_path(run: RunRecord, path: str) -> str:
    """Return the file of the project whose saved copy is ``path``, and other paths unchanged."""
    found = _SAVED.match(path)
    snapshot = load_snapshot(run) if found else None
    return f"{snapshot.root}/{path[found.end() :]}" if found and snapshot else path
