"""`end-time.json` of an attempt: when the job's time limit ends, as the supervisor last learned it from Slurm."""

from __future__ import annotations

import time
from pathlib import Path

from .files import read_json, write_json

FILE = "end-time.json"


def write(attempt: Path, end: int | None) -> None:
    """Record the end in seconds since 1970, None if there is none, as of now; raises OSError."""
    write_json(attempt / FILE, {"version": 1, "end": end, "checked": time.time()})


def read(attempt: Path) -> tuple[float | None, float] | None:
    """Return the recorded end and the time of Slurm's answer; None if the file is missing or damaged."""
    try:
        document = read_json(attempt / FILE) or {}
        end, checked = document["end"], float(document["checked"])
        return None if end is None else float(end), checked
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
