"""The JSON files of local jobs and their claims: replaced atomically; only valid files of this user are accepted.

Standard library only.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from clusterrun.base.decode import Damaged, parse_object
from clusterrun.run_folder import atomic, safe_files

_LARGEST = 1024 * 1024  # bytes of a file; the largest seen has 2 KiB


class Unreadable(Exception):
    """A file of a job exists and is not valid."""


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a file atomically, with fsync. Raises OSError; then the old file stays."""
    text = json.dumps(value, indent=1) + "\n"  # ASCII, so that names that are not UTF-8 survive
    atomic.replace(path, text.encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a file of this user, None if there is none. Raises Unreadable."""
    if path.parent.is_symlink():
        raise Unreadable(f"{path.parent} is a symbolic link")
    try:
        return parse_object(safe_files.read_bytes(path, _LARGEST, owner=os.getuid()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, Damaged) as error:
        raise Unreadable(f"{path.name} cannot be read") from error
