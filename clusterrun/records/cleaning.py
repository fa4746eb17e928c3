"""The files of a project that `clean` may delete: checkpoints of runs that are over, and caches of tokenized data.

Both are large, and nothing but a resumed run needs them. Records, logs, metrics and models stay.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from clusterrun.base.job import run_ids_in
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import files, safe_files
from clusterrun.run_folder.safe_files import RECORDS

CHECKPOINTS, CACHE = "checkpoints", "cache"
DELETED = ".deleted-"  # begins the name of a folder that is being deleted
SPEC = "spec.json"


class Item(NamedTuple):
    """A folder to delete: its size on disk in bytes, and when it was last used in seconds since 1970."""

    path: Path
    size: int
    used: float


def find_checkpoints(run: RunRecord) -> Item | None:
    """Return the folder of a run's checkpoints; None if there is none, or it is not a folder of the user's."""
    return _measure(run.run_dir / CHECKPOINTS) or _measure(run.run_dir / f"{DELETED}{CHECKPOINTS}")


def is_task(run: RunRecord) -> bool:
    """Return whether the run is a built-in task, whose result is its model folder: a script's may be a checkpoint."""
    spec = files.read_json(run.run_dir / SPEC) or {}
    work = spec.get("work")
    return isinstance(work, dict) and work.get("kind") == "task"


def find_unreadable(folders: Iterable[Path], runs: Iterable[RunRecord]) -> list[Path]:
    """Return the user's run folders with a record that could not be read as one of the runs."""
    known = {run.run_dir for run in runs}
    # another user's run does not use the user's files
    mine = [folder for folder in folders if folder not in known and safe_files.is_mine(folder)]
    return [folder for folder in mine if os.path.lexists(folder / "record.json")]


def find_caches(base: Path, before: float) -> list[Item]:
    """Return the data caches of a project that no run has read or written since ``before``."""
    folder = base / RECORDS / CACHE
    try:
        names = sorted(safe_files.list_names(folder))
    except OSError:
        return []
    found = (_measure(folder / name) for name in names)
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


def total(items: Sequence[Item]) -> int:
    """Return the size of all items in bytes."""
    return sum(item.size for item in items)


def _measure(folder: Path) -> Item | None:
    try:
        if safe_files.owner_of(folder) != os.getuid():  # raises OSError for a link
            return None
    except OSError:
        return None
    size, used = 0, 0.0
    for info in _walk(folder):
        size += info.st_blocks * 512
        used = max(used, info.st_mtime, info.st_atime)
    return Item(folder, size, used)


def _walk(folder: Path) -> Iterator[os.stat_result]:
    """Yield the plain files below a folder; files that disappear meanwhile are left out."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(Path(entry.path))
                else:
                    yield entry.stat(follow_symlinks=False)
