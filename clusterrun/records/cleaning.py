"""The files of a project that `clean` may delete: checkpoints of runs that are over, data caches, and saved code.

All are large, and nothing but a resumed run needs them. Records, logs, metrics and models stay. Of saved code the
folders go that no kept run needs, then what no folder links to.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from clusterrun.base.job import run_ids_in
from clusterrun.records.code_store import FILES, NEW, OBJECTS, SNAPSHOTS, TREES, is_changed, load_manifest
from clusterrun.records.run_record import RunRecord, list_names
from clusterrun.run_folder import files, safe_files
from clusterrun.run_folder.safe_files import RECORDS

CHECKPOINTS, CACHE = "checkpoints", "cache"
DELETED = ".deleted-"  # begins the name of a folder that is being deleted
SPEC = "spec.json"
RECENT = 3600.0
"""Seconds for which saved code is kept: a submit that has saved it may not have recorded its run yet."""


class Item(NamedTuple):
    """A folder to delete: its size on disk in bytes, and when it was last used in seconds since 1970."""

    path: Path
    size: int
    used: float


def find_checkpoints(run: RunRecord) -> Item | None:
    """Return the folder of a run's checkpoints; None if it has none, or it is not a folder of the user's."""
    folder = run.run_dir / CHECKPOINTS
    saved = _measure(folder) if list_names(folder) else None
    return saved or _measure(run.run_dir / f"{DELETED}{CHECKPOINTS}")


def is_task(run: RunRecord) -> bool:
    """Return whether the run is a built-in task, whose result is its model folder: a script's may be a checkpoint."""
    spec = files.read_json(run.run_dir / SPEC) or {}
    work = spec.get("work")
    return isinstance(work, dict) and work.get("kind") == "task"


def find_unreadable(folders: Iterable[Path], runs: Iterable[RunRecord]) -> list[Path]:
    """Return the user's run folders with a record that could not be read as one of the runs."""
    others = set(folders) - {run.run_dir for run in runs}
    # another user's run does not use the user's files
    return sorted(folder for folder in filter(safe_files.is_mine, others) if os.path.lexists(folder / "record.json"))


def find_caches(base: Path, before: float) -> list[Item]:
    """Return the data caches of a project that no run has read or written since ``before``."""
    folder = base / RECORDS / CACHE
    found = (_measure(folder / name) for name in sorted(list_names(folder)))
    return [item for item in found if item is not None and item.used < before]


def find_users(runs: Sequence[RunRecord], others: Iterable[RunRecord]) -> dict[str, RunRecord]:
    """Return, by run id, one of the ``others`` that names the run in its settings or arguments, to start from it."""
    wanted = {run.run_id for run in runs}
    users: dict[str, RunRecord] = {}
    for other in others if wanted else ():
        try:
            text = safe_files.read_bytes(other.run_dir / SPEC)
        except FileNotFoundError:
            continue
        except OSError:  # it may name any of them
            return dict.fromkeys(wanted, other)
        users |= dict.fromkeys(wanted & run_ids_in(text), other)
    return users


def delete(item: Item) -> None:
    """Delete a folder of this user's; no link is followed. Raises OSError.

    It gets another name first, so that nobody resumes from what is left after an error.
    """
    import shutil  # it loads the archive formats

    name = item.path.name
    with safe_files.open_folder(item.path.parent) as parent:
        if not name.startswith(DELETED):
            doomed = f"{DELETED}{name}"
            os.rename(name, doomed, src_dir_fd=parent.descriptor, dst_dir_fd=parent.descriptor)
            name = doomed
        shutil.rmtree(name, dir_fd=parent.descriptor)


def _measure(folder: Path) -> Item | None:
    try:
        if safe_files.owner_of(folder) != os.getuid():  # raises OSError for a link
            return None
    except OSError:
        return None
    size, used = 0, 0.0
    for _, info in _walk(folder):
        size += info.st_blocks * 512
        used = max(used, info.st_mtime, info.st_atime)
    return Item(folder, size, used)


# -- saved code ------------------------------------------------------------------------------------------------------


def find_code(base: Path, needed: Collection[str], before: float) -> list[Item]:
    """Return the folders of saved code that were last used ``before`` and whose digests are not ``needed``.

    ``base`` holds ``.clusterrun``. Their size is what deleting them frees: contents of other folders do not count.
    """
    folder = base / RECORDS / SNAPSHOTS / TREES
    if not safe_files.is_mine(folder):
        return []
    found = []
    for name in sorted(set(list_names(folder)) - set(needed)):
        with suppress(OSError):
            used = (folder / name).lstat().st_mtime
            # each content has a link in the store, and one in each folder
            size = sum(info.st_blocks * 512 for _, info in _walk(folder / name) if info.st_nlink <= 2)
            if used < before:
                found.append(Item(folder / name, size, used))
    return found


def find_added(tree: Path) -> str:
    """Return a file that a run has written or changed in its saved code, else ""; Python's caches do not count."""
    if tree.name.startswith((NEW, DELETED)):
        return ""
    files, known = tree / FILES, load_manifest(tree) or {}
    for path, info in _walk(files):
        if "__pycache__" in path.parts or stat.S_ISLNK(info.st_mode):
            continue
        if str(path.relative_to(files)) not in known or is_changed(info):
            return str(path)
    return ""


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
