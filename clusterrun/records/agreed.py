"""What the user agreed to of what files of a project name: a Python to start, a host to run on (ADR 31).

A cloned project brings its own ``clusterrun.toml``. Each agreement is a file of the user's state folder, for one
project and one exact text, so a file that changes needs a new one.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from clusterrun.run_folder import safe_files
from clusterrun.run_folder.safe_files import read_plain

FOLDER = "agreed"


def agree(state: Path, *words: str) -> None:
    """Remember an agreement; if it cannot be written, the user has to agree again."""
    path = _place(state, words)
    if path.exists():
        return
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        safe_files.write(path, _text(words))


def has_agreed(state: Path, *words: str) -> bool:
    """Return whether the user has agreed to exactly these words."""
    try:
        return read_plain(_place(state, words)) == _text(words)
    except OSError:
        return False


def _place(state: Path, words: tuple[str, ...]) -> Path:
    return state / FOLDER / hashlib.sha256(_text(words)).hexdigest()[:32]


def _text(words: tuple[str, ...]) -> bytes:
    return b"\0".join(map(os.fsencode, words))
