"""How long the job's Python may take to check settings: it can start slowly, or never answer."""

from __future__ import annotations

import contextlib
import time
import zlib
from pathlib import Path

from clusterrun.run_folder.safe_files import written_at

MOST = 20.0
"""Seconds for a Python whose files come from a slow file system, where the first start takes several seconds."""
_REMEMBERED = 86_400.0


class Patience:
    """The time limit of an environment: ``MOST`` seconds, or ``least`` for a day after it did not answer in ``MOST``.

    ``python`` names the environment. The user's state folder remembers it.
    """

    def __init__(self, state: Path, python: str, least: float) -> None:
        self._mark = state / "unanswered" / f"{zlib.crc32(python.encode('utf-8', 'surrogateescape')):08x}"
        self.python, self.least = python, least
        self.seconds = least if time.time() - written_at(self._mark) < _REMEMBERED else max(least, MOST)

    def answered(self) -> None:
        """Give the environment the full time again."""
        with contextlib.suppress(OSError):
            self._mark.unlink()

    def gave_up(self) -> None:
        """Remember that the environment did not answer in ``seconds``."""
        if self.seconds == self.least:
            return  # the day counts from the first time
        with contextlib.suppress(OSError):  # a cache
            self._mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._mark.touch(mode=0o600)
