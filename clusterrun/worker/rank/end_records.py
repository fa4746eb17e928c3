"""Write the files in which ranks record their start and their end; each has one writer and appears whole.

`clusterrun/records/rank_records.py` reads them on the login node. A change that an older reader would misread raises
VERSION; a new key does not.
"""

from __future__ import annotations

import json
import os
import re
import time
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ...base.decode import as_int
from ...base.errors import WorkerError
from ...run_folder import atomic
from ...run_folder.files import file_mode, read_json, write_json
from ...run_folder.rank_records import RankSlot

VERSION = 1
SAVED = 85  # the status of a job that stopped to be resumed. Not 0: an afterok job would start with an unfinished model
START, FIRST_FAILURE, STOPPED, PACKAGES = "start.json", "first_failure.json", "stopped", "packages.json"
HANG = "hang.json"
LONGEST_ERROR = 500  # characters
CODE_ERRORS = (ImportError, ModuleNotFoundError, SyntaxError, IndentationError, NameError)
LOST_CONNECTION = (  # in errors of gloo, NCCL and TCPStore
    "closed by peer|reset by peer|[Bb]roken pipe|remote process exited|Connection was likely closed"
)
LOST_PEER = ("lost-connection", "peer-lost")  # kinds of errors that only show that another process has ended


@dataclass(frozen=True)
class Outcome:
    """How a rank ended: its exit status and, for a failure, one line and the traceback.

    `kind` and `values` are the cause as data (see WorkerError).
    """

    status: int
    error: str = ""
    trace: TracebackType | None = None
    kind: str = ""
    values: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, error: WorkerError) -> Outcome:
        """Return the outcome of a rank that an error ends."""
        return cls(error.status, str(error), kind=error.kind, values=error.values)


def write_start(folder: Path, backend: str, torch_version: str, ranks: list[dict[str, Any]]) -> None:
    """Write start.json, with an entry for each rank; raises OSError."""
    document = {
        "version": VERSION,
        "world_size": len(ranks),
        "backend": backend,
        "time": time.time(),
        "torch": torch_version,
        "ranks": ranks,
    }
    write_json(folder / START, document)


def write_packages(folder: Path, packages: list[str]) -> None:
    """Write packages.json, the Python packages of the first node; raises OSError."""
    write_json(folder / PACKAGES, {"version": VERSION, "packages": packages})


def write_end(
    slot: RankSlot,
    node: str,
    outcome: Outcome,
    *,
    joined_group: bool | None = None,
    any_joined_group: bool | None = None,
    signals: Collection[str] = (),
) -> None:
    """Write the end record of the slot's rank; raises OSError.

    `joined_group` is whether this rank joined a process group, `any_joined_group` whether any rank of the run did;
    None if it is not known. `signals` are the names of those that it got.
    """
    document = {
        "version": VERSION,
        "rank": slot.rank,
        "node": node,
        "status": outcome.status,
        "time": time.time(),
        "joined_group": joined_group,
        "any_joined_group": any_joined_group,
        "signals": sorted(signals),
    }
    if outcome.status:
        document["error"] = outcome.error
    if outcome.kind:
        document |= {"kind": outcome.kind, "values": outcome.values}
    slot.write_end(document)


def write_stopped(folder: Path, step: int, reason: str, saved: str, line: str) -> None:
    """Write `stopped`, from which the batch script knows that the run saved and stopped; raises OSError.

    `saved` is what was saved where, in words, and `line` the line that is printed.
    """
    write_json(
        folder / STOPPED,
        {"version": VERSION, "step": step, "reason": reason, "saved": saved, "line": line, "time": time.time()},
    )


def claim_first_failure(folder: Path, rank: int, node: str, outcome: Outcome) -> bool:
    """Write first_failure.json unless another rank has. Return whether this rank wrote it. Raises OSError."""
    file, line = locate(outcome.trace)
    document = {
        "version": VERSION,
        "rank": rank,
        "node": node,
        "status": outcome.status,
        "error": outcome.error,
        "file": file,
        "line": line,
        "time": time.time(),
        "kind": outcome.kind,
        "values": outcome.values,
    }
    return atomic.create_once(folder / FIRST_FAILURE, json.dumps(document).encode(), file_mode(folder))


def first_failure_error(folder: Path) -> str | None:
    """Return the error of the rank that failed first; None if none has, or it is not visible from this node yet."""
    error = (read_json(folder / FIRST_FAILURE) or {}).get("error")
    return None if error is None else str(error)


def first_failure_status(folder: Path) -> int | None:
    """Return the exit status of the rank that failed first; None if none has, or it is not visible from this node."""
    return as_int((read_json(folder / FIRST_FAILURE) or {}).get("status"))


def first_failure_rank(folder: Path) -> int | None:
    """Return the rank that failed first; None if none has, or it is not visible from this node yet."""
    return as_int((read_json(folder / FIRST_FAILURE) or {}).get("rank"))


def has_failed(folder: Path) -> bool:
    """Return whether a rank has written first_failure.json."""
    return (folder / FIRST_FAILURE).exists()


def read_hang(folder: Path) -> dict[str, Any]:
    """Return why the watchdog ended the launch of this folder; empty if it did not."""
    return read_json(folder / HANG) or {}


def is_lost_connection(error: str) -> bool:
    """Return whether an error only shows that another process has ended, or that its node is lost."""
    return re.search(LOST_CONNECTION, error) is not None


def describe_error(error: BaseException) -> str:
    """Return an exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = type(error).__name__
    return f"{name}: {lines[0]}"[:LONGEST_ERROR] if lines else name


def exception_kind(error: BaseException) -> str:
    """Return the kind of an exception: `lost-connection` shows that another process has ended.

    `code-error` comes again at each start, `collective-error` may follow from the end of another rank.
    """
    if type(error) in CODE_ERRORS:
        return "code-error"
    text = describe_error(error)
    if is_lost_connection(text):
        return "lost-connection"
    return "collective-error" if re.search("NCCL error|DistBackendError", text) else "exception"


def locate(trace: TracebackType | None) -> tuple[str | None, int | None]:
    """Return the file and line of a traceback's innermost frame outside libraries, else of the innermost."""
    frames = traceback.extract_tb(trace)
    own = [f for f in frames if not f.filename.startswith("<") and not _is_library(f.filename)]
    chosen = (own or frames)[-1:]
    return (chosen[0].filename, chosen[0].lineno) if chosen else (None, None)


def _is_library(filename: str) -> bool:
    return "site-packages" in filename or filename.startswith(os.path.dirname(os.__file__) + os.sep)
