"""The small files by which ranks tell how they ended; each has one writer and appears whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

LONGEST_ERROR = 500


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON file so that readers on any node see the old one or the new one; raises OSError."""
    temporary = _write_temporary(path, document)
    os.replace(temporary, path)
    _sync_folder(path.parent)


def write_end(folder: Path, rank: int, node: str, status: int, error: str | None = None) -> None:
    """Write this rank's end marker, `rank-<R>.end`; raises OSError."""
    document: dict[str, Any] = {"rank": rank, "node": node, "status": status, "time": time.time()}
    if error is not None:
        document["error"] = error
    write_json(folder / f"rank-{rank}.end", document)


def claim_first_failure(folder: Path, document: dict[str, Any]) -> bool:
    """Write first_failure.json unless another rank has; tells whether this one did. Raises OSError.

    A hard link is the exclusive create that holds on NFS and never shows a half-written file.
    """
    target = folder / "first_failure.json"
    temporary = _write_temporary(target, document)
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        try:
            with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
                os.fchmod(file.fileno(), os.stat(temporary).st_mode & 0o640)
                json.dump(document, file)
        except FileExistsError:
            return False
    finally:
        os.unlink(temporary)
    _sync_folder(folder)
    return True


def describe_error(error: BaseException) -> str:
    """Put an exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = type(error).__name__
    return f"{name}: {lines[0]}"[:LONGEST_ERROR] if lines else name


def locate(trace: TracebackType | None) -> tuple[str | None, int | None]:
    """Find the file and line to show for a traceback: the innermost frame outside libraries, else the innermost."""
    frames = traceback.extract_tb(trace)
    own = [f for f in frames if not f.filename.startswith("<") and not _is_library(f.filename)]
    chosen = (own or frames)[-1:]
    return (chosen[0].filename, chosen[0].lineno) if chosen else (None, None)


def _is_library(filename: str) -> bool:
    return "site-packages" in filename or filename.startswith(os.path.dirname(os.__file__) + os.sep)


def create(path: Path) -> int:
    """Open a new file for writing, in place of whatever stood there; returns its descriptor. Raises OSError.

    Its mode is 0600, or 0640 in a folder that its group may read, whatever the umask is: that one is for the files of
    the user's own code.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    mode = 0o600 | (os.stat(path.parent).st_mode & 0o040)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    os.fchmod(descriptor, mode)
    return descriptor


def _write_temporary(path: Path, document: dict[str, Any]) -> Path:
    temporary = path.parent / f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp"
    with open(create(temporary), "w") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse it on folders
    finally:
        os.close(descriptor)
