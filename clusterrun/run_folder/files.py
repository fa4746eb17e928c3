"""Read and write the small files of a run: JSON objects and texts, with the mode that their folder asks for.

And where the user's own files are that belong to no run: the state folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..base.decode import Damaged, parse_object
from . import atomic, safe_files

VERSION = 1


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return the state folder: ``CLUSTERRUN_STATE``, else ``clusterrun`` in ``XDG_STATE_HOME`` (``~/.local/state``)."""
    if environ.get("CLUSTERRUN_STATE"):
        return Path(environ["CLUSTERRUN_STATE"])
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".local" / "state")
    return Path(base) / "clusterrun"


def read_json(path: Path, limit: int = safe_files.LIMIT) -> dict[str, Any] | None:
    """Return the JSON object in a file of at most ``limit`` bytes, or None if it is missing, incomplete or another."""
    try:
        return parse_object(safe_files.read_bytes(path, limit))
    except (OSError, Damaged):
        return None


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a JSON file, as ``write_text`` does."""
    write_text(path, json.dumps(document))


def write_record(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a file that a job leaves for the commands: an object with its version. Raises OSError."""
    write_json(path, {"version": VERSION, **document})


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically, as seen from any node. Raises OSError."""
    atomic.replace(path, text.encode(), file_mode(path.parent))


def file_mode(folder: Path) -> int:
    """Return the mode of our files in a folder: 0600, or 0640 where the folder's group may read. Raises OSError.

    The umask does not count; it is for the files of the user's own code.
    """
    return 0o600 | (folder.stat().st_mode & 0o040)


def is_listed(file: Path) -> bool:
    """Return whether a file exists.

    NFS may remember "no such file" for a minute, but asks the server when it opens a folder.
    """
    try:
        return file.name in os.listdir(file.parent)
    except OSError:
        return False
