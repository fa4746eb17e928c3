"""The number of the run's newest attempt: only its processes may write checkpoints, metrics and models.

The supervisor increments the number in a file before each launch, and exports both. After a requeue, processes of an
older attempt may still run on a disconnected node: they find a larger number in the file and stop.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ..base.errors import WorkerError
from .claims import JobIdentity, check_owner
from .files import is_listed, write_text

NUMBER, FILE = "CLUSTERRUN_ATTEMPT_NUMBER", "CLUSTERRUN_ATTEMPT_NUMBER_FILE"
FOLDER_GONE = "the run's folder is not there: was the project renamed, moved or removed while the job ran?"


class Superseded(WorkerError):
    """Another process has taken over from this one, which must stop and write nothing more."""


def begin_next(run_dir: Path, token: str, job: JobIdentity) -> int:
    """Begin the run's next attempt: processes of an earlier one may write no more. Return its number.

    Raises WorkerError, with status 75 if the run is no longer this start's.
    """
    file = path_of(run_dir, job)
    before = _read(file) if is_listed(file) else 0
    check_owner(run_dir, token, job)
    try:
        write_text(file, f"{before + 1}\n")
    except OSError as error:
        raise WorkerError(f"cannot write {file}: {error.strerror}") from None
    return before + 1


def path_of(run_dir: Path, job: JobIdentity) -> Path:
    """Return the file with the number; each task of an array has its own."""
    return run_dir / f"attempt_number{job.task}"


def number() -> int:
    """Return the attempt number of this process; 0 outside a run."""
    return int(os.environ.get(NUMBER) or 0)


def check() -> None:
    """Raise Superseded if a newer attempt of the run has started. Call directly before each rename and append.

    Raises OSError if the number cannot be read: then do not write either, and create no folder. Between this check and
    the write there is time for one system call. Outside a run there is no check.
    """
    path = os.environ.get(FILE)
    if not path or not os.environ.get(NUMBER):
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


def _read(file: Path) -> int:
    """Return the number in a file; raises WorkerError."""
    try:
        text = file.read_text(errors="replace").strip()
    except OSError:
        text = ""
    if not (text.isascii() and text.isdigit()):
        raise WorkerError(f"{file} does not contain a number: {text!r}")
    return int(text)
