"""Fingerprints of data files, for the keys of the cache and for checkpoints."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .prepared import fingerprint
from .sources import find_sources


def marks(*data: str | Sequence[str]) -> list[Any]:
    """Return every file with its size and modification time; for builtin data, the version of Python.

    Empty names are left out. Raises WorkerError for a file that is not there.
    """
    found: list[Any] = []
    for names in data:
        for source in find_sources(names) if names else []:
            found += fingerprint([Path(source)]) if os.path.exists(source) else [[source, platform.python_version()]]
        found.append("|")  # a file that moves between the lists makes other data
    return found
