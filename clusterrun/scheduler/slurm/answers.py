"""The last answers of slow Slurm commands, each in a file of the user's state folder.

sacctmgr takes a quarter of a second even on a small cluster, and a user's accounts change rarely.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

from clusterrun.run_folder import safe_files

_LARGEST = 4 * 1024 * 1024  # bytes


class RecentAnswers:
    """The answers in ``folder``; ``name`` says which cluster and which machine they belong to."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name

    def load(self, argv: Sequence[str], max_age: float) -> str | None:
        """Return a command's answer of the last ``max_age`` seconds, else None."""
        path = self._path(argv)
        try:
            age = time.time() - path.stat().st_mtime
            return safe_files.read_bytes(path, _LARGEST).decode() if 0 <= age <= max_age else None
        except (OSError, ValueError):
            return None

    def save(self, argv: Sequence[str], text: str) -> None:
        """Save an answer. It is a cache, so a full disk is no error."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            safe_files.write(self._path(argv), text.encode("utf-8", "surrogateescape"))

    def _path(self, argv: Sequence[str]) -> Path:
        mark = hashlib.sha256("\0".join(argv).encode("utf-8", "surrogateescape")).hexdigest()[:12]
        return self._folder / f"{self._name}.{mark}.answer"
