"""The code that was saved at submission: ranks run it instead of the project's files, which may have changed since.

The working directory stays the user's. What the saved code lacks, such as modules that git ignores, is taken from the
project.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from ...base.decode import parse_object
from ...base.errors import WorkerError
from ...run_folder.files import is_listed

RECORD = "snapshot.json"
# the files that a script reads as its code or configuration; it may write into others, and saved ones are read-only
_READ = (".py", ".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".conf", ".jinja", ".j2")
FILES, PROJECT = "CLUSTERRUN_SNAPSHOT", "CLUSTERRUN_SNAPSHOT_OF"  # the folder of the saved files, and of the project


def variables(run_dir: Path, patience: float = 0.0) -> dict[str, str]:
    """Return the variables of the ranks, none if no code was saved; raises WorkerError if it has been deleted.

    `patience` is how many seconds NFS may take to show it.
    """
    try:
        record = parse_object((run_dir / RECORD).read_bytes())
        digest, root = str(record["digest"]), str(record["root"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkerError(f"cannot read {run_dir / RECORD}: {error}") from None
    files = run_dir.parents[1] / "snapshots" / "trees" / digest / "files"
    if not re.fullmatch("[0-9a-f]+", digest) or not _appears(files, patience):
        raise WorkerError(
            f"the saved code of this run is gone: {files}\nclusterrun: hint: run"
            f" `clusterrun resume {run_dir.name} --current-code` to continue with the current code",
            status=2,
        )
    return {FILES: os.path.realpath(files), PROJECT: root}


def _appears(folder: Path, patience: float) -> bool:
    """Return whether a folder is there within so many seconds."""
    until = time.monotonic() + patience
    while not is_listed(folder):
        if time.monotonic() >= until:
            return False
        time.sleep(1)
    return True


def find_saved(path: str) -> str:
    """Return the saved copy of a plain file or folder of the project; an empty text if there is none."""
    if FILES not in os.environ:
        return ""
    saved = _move(os.path.realpath(path), PROJECT, FILES)
    # the saved folders link to the rest of the project, which is not saved
    return saved if saved and os.path.exists(saved) and _move(os.path.realpath(saved), FILES, PROJECT) else ""


def replace_files(words: Sequence[str]) -> list[str]:
    """Return arguments in which files, also after `--config=`, are replaced by their saved copies."""
    return [_replace(word) for word in words]


def search_path(folder: str) -> list[str]:
    """Return where to import from instead of a folder alone: the saved folder, then the project's."""
    project = _move(os.path.realpath(folder), FILES, PROJECT)
    if project:
        return [folder, project]
    return [*filter(None, [find_saved(folder)]), folder]


def extend_path() -> None:
    """Import modules of the project from the saved code."""
    if FILES not in os.environ:
        return
    sys.path[:] = dict.fromkeys(found for entry in sys.path for found in search_path(entry or os.getcwd()))
    sys.meta_path.append(_Project)


class _Project:
    """Finds in the project the modules that a saved package lacks, as those that were built or generated there."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:  # fmt: skip
        project = [found for entry in path or () if (found := _move(os.path.realpath(entry), FILES, PROJECT))]
        return PathFinder.find_spec(name, project, target) if project else None


def _replace(word: str) -> str:
    option, equals, value = word.partition("=")
    if not word.startswith("-"):
        option, equals, value = "", "", word
    saved = find_saved(value) if value.endswith(_READ) or (value and os.access(value, os.X_OK)) else ""
    return f"{option}{equals}{saved}" if saved and os.path.isfile(saved) else word


def _move(path: str, source: str, target: str) -> str:
    """Return a path below the folder of one variable as a path below that of another; else an empty text."""
    base, other = os.environ.get(source), os.environ.get(target)
    if not base or not other or os.path.commonpath([path, base]) != base:
        return ""
    return os.path.normpath(os.path.join(other, os.path.relpath(path, base)))
