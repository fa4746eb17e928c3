"""launch.json in an attempt's folder: when a launch began and ended, why it failed, and how far its training came.

`clusterrun/records/launches.py` reads it, and computes what each failure cost. The launch's nodes are in `nodes`.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from . import end_records
from .requeue import SAVED
from .restart import LaunchEnd

LAUNCH = "launch.json"
#: Keys of rank 0's progress record: the first and the last step of the launch, and seconds of a step.
PROGRESS = ("first_step", "first_step_at", "step", "stepped", "step_s")


def write_begin(folder: Path, began: float) -> None:
    """Record that a launch began, in seconds since 1970; a failure to write it changes nothing."""
    with suppress(OSError):
        end_records.write_json(folder / LAUNCH, {"version": end_records.VERSION, "began": began})


def write_end(folder: Path, began: float, end: LaunchEnd) -> None:
    """Record how a launch ended; its cause is empty unless it failed."""
    document = {
        "version": end_records.VERSION,
        "began": began,
        "ended": time.time(),
        "status": end.status,
        "cause": end.cause if end.status not in (0, SAVED) else "",
        **{key: end.progress.get(key) for key in PROGRESS},
    }
    with suppress(OSError):
        end_records.write_json(folder / LAUNCH, document)
