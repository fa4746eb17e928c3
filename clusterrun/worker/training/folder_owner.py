"""Ownership of a checkpoint folder: only the run that its owner.json names may write there."""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path
from typing import Any

from ...base.decode import parse_object
from ...base.errors import WorkerError
from ...run_folder import atomic, attempt_number, rank_records
from ..rank.distenv import RunEnv
from . import atomic_files

OWNER = "owner.json"
SILENT_S = 300.0  # rank 0 writes its progress record every 10 s; NFS may show it a minute late


def check(folder: Path, run_id: str, number: int) -> None:
    """Raise Superseded if an attempt of a run may no longer write into a folder, and OSError if that is unknown."""
    attempt_number.check()
    owner = _read(folder)
    if owner is not None and (owner["run_id"] != run_id or owner["attempt_number"] > number):
        raise attempt_number.Superseded(
            f"{folder} now belongs to {_named(owner)}: this process will stop and write nothing more"
        )


def claim(folder: Path, run: RunEnv) -> tuple[atomic.Check, list[str]]:
    """Make this run the owner of an existing folder; return `check` of that, and lines for the user.

    The same run may always continue, and the folder of a run that has ended is taken over. Raises WorkerError
    (status 2) if another run is active in it, and OSError.
    """
    number = attempt_number.number()
    may_write = functools.partial(check, folder, run.run_id, number)
    document = {
        "run_id": run.run_id,
        "job_id": os.environ.get("CLUSTERRUN_JOB_ID", ""),
        "attempt_number": number,
        "attempt_dir": str(run.attempt_dir or ""),
        "time": time.time(),
    }
    owner = _read(folder)
    text = json.dumps(document).encode()
    if owner is None and atomic.create_once(folder / OWNER, text, mode=None, check=attempt_number.check):
        return may_write, []
    owner = owner or _read(folder)
    other = owner if owner is not None and owner["run_id"] != run.run_id else None
    if other is not None and _may_be_active(other):
        raise WorkerError(
            f"checkpoint_dir={folder} is in use by {_named(other)}: wait until that run ends, or set another"
            f" checkpoint_dir (you can still set resume={folder}, which only reads checkpoints)",
            status=2,
        )
    atomic.replace(folder / OWNER, text, mode=None, check=attempt_number.check)
    return may_write, [] if other is None else [f"took over checkpoint_dir from {_named(other)}, which has ended"]


def _read(folder: Path) -> dict[str, Any] | None:
    """Return the owner of a folder; None if there is none, or its file is damaged. Raises OSError."""
    try:
        owner = parse_object(atomic_files.read_small(folder / OWNER))
        return {
            "run_id": str(owner["run_id"]),
            "job_id": str(owner["job_id"]),
            "attempt_number": int(owner["attempt_number"]),
            "attempt_dir": str(owner["attempt_dir"]),
            "time": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(owner["time"]))),
        }
    except (FileNotFoundError, ValueError, TypeError, KeyError, OverflowError):
        return None


def _may_be_active(owner: dict[str, Any]) -> bool:
    """Return whether the owner's attempt may be active: no end record, and a progress record of the last SILENT_S."""
    attempt = Path(owner["attempt_dir"])
    if not attempt.is_absolute():  # a process outside a run
        return False
    try:
        if "end.json" in os.listdir(attempt):  # another user's folder may not be readable: then it may be active
            return False
        _, ends = rank_records.read_node(attempt, 0)
        return 0 not in ends and time.time() - os.stat(rank_records.path_of(attempt, 0)).st_mtime < SILENT_S
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True


def _named(owner: dict[str, Any]) -> str:
    job = f"job {owner['job_id']}, " if owner["job_id"] else ""
    name = f"run {owner['run_id']} ({job}since {owner['time']})"
    return name if name.isprintable() else repr(name)
