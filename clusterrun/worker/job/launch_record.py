"""launch.json in an attempt's folder: when a launch began and ended, why it failed, and how far its training came.

`clusterrun/records/launches.py` reads it, and computes what each failure cost. The launch's nodes are in `nodes`.
"""

from __future__ import annotations

import os
import resource
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...run_folder.files import write_json
from ..rank import end_records
from .restart import LaunchEnd

#: Limits of a process that end jobs far from their cause: open files, processor seconds, bytes in a file, processes,
#: and bytes of address space.
LIMITS = ("NOFILE", "CPU", "FSIZE", "NPROC", "AS")
#: Keys of rank 0's progress record: the first and the last step of the launch, and seconds of a step.
PROGRESS = ("first_step", "first_step_at", "step", "stepped", "step_s")


class LaunchRecord:
    """The record of one launch, which began at `began` (seconds since 1970). A failure to write it changes nothing.

    `log_start` has the bytes in both logs of the job then; None if they are no files.
    """

    def __init__(self, folder: Path, began: float) -> None:
        self._path = folder / "launch.json"
        self.log_start = _log_sizes()
        self._document: dict[str, Any] = {"version": end_records.VERSION, "began": began, "log_start": self.log_start}
        self._document["limits"] = _finite_limits()
        self._write()

    def end(self, end: LaunchEnd) -> None:
        """Record how the launch ended; its cause is empty unless it failed."""
        why = end if end.status not in (0, end_records.SAVED) else LaunchEnd(end.status, "")
        self._document |= {
            "ended": time.time(),
            "status": end.status,
            "cause": why.cause[:1_000],
            "kind": why.kind,
            "values": why.values,
            **{key: end.progress.get(key) for key in PROGRESS},
        }
        self._write()

    def _write(self) -> None:
        with suppress(OSError):
            write_json(self._path, self._document)


def _finite_limits() -> dict[str, int]:
    """Return the limits of this process that its ranks inherit (srun passes them on), without those that are none."""
    found = {name.lower(): resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in LIMITS}
    return {name: value for name, value in found.items() if value != resource.RLIM_INFINITY}


def _log_sizes() -> list[int] | None:
    """Return the bytes in both logs of the job, which are this program's stdout and stderr; None if they are none."""
    with suppress(OSError):
        found = [os.fstat(descriptor) for descriptor in (1, 2)]
        if all(stat.S_ISREG(one.st_mode) for one in found):
            return [one.st_size for one in found]
    return None
