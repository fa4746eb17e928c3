"""Read and write the small files of a run. Standard library only.

A file appears whole, with the mode that its folder asks for. What is read may be damaged, whatever the bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def parse_object(data: bytes | str) -> dict[str, Any]:
    """Return the JSON object in a text; NaN and infinite numbers become None. Raises ValueError for anything else."""
    try:
        found = json.loads(data, parse_constant=lambda name: None)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if isinstance(found, dict):
        return found
    raise ValueError("not a JSON object")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is none, or it is damaged."""
    try:
        return parse_object(path.read_bytes())
    except (OSError, ValueError):
        return {}


def as_int(value: object) -> int | None:
    """Return a whole number; None for anything else."""
    return value if type(value) is int and abs(value) < 2**63 else None


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically, as seen from any node; a link in its place is replaced too. Raises OSError."""
    temporary = write_temporary(path, text)
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replace a JSON file, as write_text does."""
    write_text(path, json.dumps(document))


def file_mode(folder: Path) -> int:
    """Return the mode of our files in a folder: 0600, or 0640 where the folder's group may read. Raises OSError.

    The umask does not count; it is for the files of the user's own code.
    """
    return 0o600 | (os.stat(folder).st_mode & 0o040)


def create(path: Path) -> int:
    """Create a file for writing, replacing an existing one; return its descriptor. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    mode = file_mode(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    os.fchmod(descriptor, mode)
    return descriptor


def write_temporary(path: Path, text: str) -> Path:
    """Write a file beside `path`, synced to disk, under a name that nobody else uses; return it. Raises OSError."""
    temporary = path.parent / f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp"
    with open(create(temporary), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last, where the file system can. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems do not support it on folders
    finally:
        os.close(descriptor)
