"""The JSON files of local jobs and their claims: replaced atomically; only valid files of this user are accepted.

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from clusterrun.scheduler.local.processes import Identity
from clusterrun.system import safe_files

_LARGEST = 1024 * 1024  # bytes of a file; the largest seen has 2 KiB


class Unreadable(Exception):
    """A file of a job exists and is not valid."""


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a file atomically, with fsync. Raises OSError; then the old file stays."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=1) + "\n")  # ASCII, so that names that are not UTF-8 survive
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a file of this user, None if there is none. Raises Unreadable."""
    if path.parent.is_symlink():
        raise Unreadable(f"{path.parent} is a symbolic link")
    try:
        value = json.loads(safe_files.read_bytes(path, _LARGEST, owner=os.getuid()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise Unreadable(f"{path.name} cannot be read") from error
    if not isinstance(value, dict):
        raise Unreadable(f"{path.name} cannot be read")
    return value


def typed(kind: type[Any], value: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that this version knows. Raises TypeError for a wrong type."""
    known = {f.name: f for f in fields(kind) if f.name in value}
    for name, field in known.items():
        if not _TYPES[str(field.type)](value[name]):
            raise TypeError(f"{name} is not {field.type}")
    return {name: value[name] for name in known}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**40


def _is_int(value: object) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


#: A check per field type, by the type's text.
_TYPES: dict[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "int": _is_int,
    "bool": lambda value: isinstance(value, bool),
    "float": _is_number,
    "int | None": lambda value: value is None or _is_int(value),
    "float | None": lambda value: value is None or _is_number(value),
    "tuple[str, ...]": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "Identity": lambda value: isinstance(value, Identity),
}
