"""The saved code that `clean` may delete: folders that no kept run needs, then what no folder links to."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from clusterrun.records.cleaning import DELETED, Item, delete
from clusterrun.records.code_store import FILES, NEW, OBJECTS, SNAPSHOTS, TREES, is_changed, load_manifest
from clusterrun.run_folder import safe_files
from clusterrun.run_folder.safe_files import RECORDS

RECENT = 3600.0
"""Seconds for which saved code is kept: a submit that has saved it may not have recorded its run yet."""
_CACHE = "__pycache__"


def find_code(base: Path, needed: Collection[str], before: float) -> list[Item]:
    """Return the folders of saved code that were last used ``before`` and whose digests are not ``needed``.

    ``base`` holds ``.clusterrun``. Their size is what deleting them frees: contents of other folders do not count.
    """
    folder = base / RECORDS / SNAPSHOTS / TREES
    try:
        names = sorted(set(safe_files.list_names(folder)) - set(needed))
        if safe_files.owner_of(folder) != os.getuid():
            return []
    except OSError:
        return []
    found = []
    for name in names:
        with suppress(OSError):
            used = (folder / name).lstat().st_mtime
            # each content has a link in the store, and one in each folder
            size = sum(info.st_blocks * 512 for _, info in _walk(folder / name) if info.st_nlink <= 2)
            found.append(Item(folder / name, size, used))
    return [item for item in found if item.used < before]


def find_added(tree: Path) -> str:
    """Return a file that a run has written or changed in its saved code, else ""; Python's caches do not count."""
    if tree.name.startswith((NEW, DELETED)):
        return ""
    files, known = tree / FILES, load_manifest(tree) or {}
    added = (
        path for path, info in _walk(files)
        if _CACHE not in path.parts and not stat.S_ISLNK(info.st_mode)
        and (str(path.relative_to(files)) not in known or is_changed(info))
    )  # fmt: skip
    return str(next(added, ""))


def delete_code(item: Item) -> bool:
    """Delete a folder of saved code, unless a submit has used it since it was found. Raises OSError."""
    doomed = item.path.with_name(f"{DELETED}{item.path.name}")
    if not item.path.name.startswith(DELETED):
        item.path.rename(doomed)
        if doomed.lstat().st_mtime > item.used:
            doomed.rename(item.path)
            return False
        item = item._replace(path=doomed)
    delete(item)
    return True


def delete_contents(base: Path, before: float) -> None:
    """Delete the contents that no folder links to, and copies that were left unfinished ``before``. Raises OSError."""
    for path, info in _walk(base / RECORDS / SNAPSHOTS / OBJECTS):
        # a submit that misses a content stores it again
        if info.st_nlink == 1 and (not path.name.startswith(NEW) or info.st_mtime < before):
            path.unlink(missing_ok=True)


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files and links below a folder; what disappears meanwhile is left out."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(Path(entry.path))
                else:
                    yield Path(entry.path), entry.stat(follow_symlinks=False)
