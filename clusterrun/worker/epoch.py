"""The run's epoch: only the newest attempt of a run may write checkpoints, metrics and models.

The batch script increments the number in CLUSTERRUN_EPOCH_FILE when it starts, and exports it as CLUSTERRUN_EPOCH.
After a requeue, processes of an older attempt may still run on a disconnected node: they find a larger number and stop.
"""

from __future__ import annotations

import errno
import os

from .errors import WorkerError

FOLDER_GONE = "the run's folder is not there: was the project renamed, moved or removed while the job ran?"


class Superseded(WorkerError):
    """Another process has taken over from this one, which must stop and write nothing more."""


def number() -> int:
    """Return the epoch of this process; 0 outside a run."""
    return int(os.environ.get("CLUSTERRUN_EPOCH") or 0)


def check() -> None:
    """Raise Superseded if a newer attempt of the run has started. Call directly before each rename and append.

    Raises OSError if the epoch cannot be read: then do not write either, and create no folder. Between this check and
    the write there is time for one system call. Without the batch script's variables there is no check.
    """
    path = os.environ.get("CLUSTERRUN_EPOCH_FILE")
    if not path or not os.environ.get("CLUSTERRUN_EPOCH"):
        return
    try:
        with open(path, "rb") as file:  # opened each time, so that an NFS client revalidates it
            text = file.read(32)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, FOLDER_GONE, path) from None
    if not text.strip().isdigit():
        raise OSError(errno.EINVAL, f"{path} does not contain the run's attempt counter")
    if int(text) > number():
        raise Superseded(
            f"a newer attempt of this run has started (the attempt counter is now {int(text)};"
            f" it was {number()} when this process started): this process will stop and write nothing more"
        )
