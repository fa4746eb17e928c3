"""The files in which the ranks of a launch record their start and their end, and the job its own end.

A rank writes ``start.json`` and ``training.json`` (rank 0), ``first_failure.json`` (the first that fails), ``stopped``
(rank 0) and its end record (``rank_records.py``); the supervisor ``hang.json`` and ``end.json``. Each has one writer
and appears whole. A newer version may add keys, which are ignored here; a change that an older reader would misread
raises VERSION. Files may be missing, damaged or another user's: what has the wrong type is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..base.decode import as_int, as_objects, as_text, as_texts, parse_fields
from ..base.errors import WorkerError
from . import atomic, rank_records
from .files import VERSION, file_mode, read_json, write_record

START, FIRST_FAILURE, STOPPED, PACKAGES = "start.json", "first_failure.json", "stopped", "packages.json"
TRAINING = "training.json"
HANG, END, HOLD = "hang.json", "end.json", "hold.json"
NCCL = "nccl-ras.txt"  # its answer, beside hang.json
SAVED = 85  # the status of a job that stopped to be resumed. Not 0: an afterok job would start with an unfinished model
_LARGEST_START = 128 * 1024 * 1024  # bytes; that of 80,000 ranks has 24 MiB


@dataclass(frozen=True)
class Outcome:
    """How a rank ended: its exit status and, for a failure, one line and its place (file and line).

    `kind` and `values` are the cause as data (see WorkerError).
    """

    status: int
    error: str = ""
    place: tuple[str | None, int | None] = (None, None)
    kind: str = ""
    values: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, error: WorkerError) -> Outcome:
        """Return the outcome of a rank that an error ends."""
        return cls(error.status, str(error), kind=error.kind, values=error.values)


class Failure(NamedTuple):
    """What failed, as the job recorded it: a rank, or with ``rank`` None something of the whole launch.

    ``kind`` and ``values`` are the cause as data (``base/errors.py``); empty in a record of an older version.
    """

    rank: int | None = None
    node: str = ""
    status: int | None = None
    error: str = ""
    place: str = ""  # file:line
    file: str = ""  # path of the record
    kind: str = ""
    values: Mapping[str, str] = MappingProxyType({})


class Hang(NamedTuple):
    """Why the watchdog ended a launch (``hang.json``): the ranks that hung it are in ``cause``, ``rank`` is the first.

    ``state`` is what its process did, ``place`` the line of the user's code that it was at. ``silent``: its heartbeats
    were missing or its process did not run, so the process or its node may be at fault. ``stacks`` is where the ranks
    left their stacks, empty if nowhere. ``lost_nodes`` did not respond. ``nccl`` is what NCCL says, in lines, and
    ``nccl_problem`` why it says nothing; both are empty if it was not asked.
    """

    cause: str
    rank: int | None = None
    node: str = ""
    pid: int | None = None
    state: str = ""
    place: str = ""  # file:line
    silent: bool = False
    file: str = ""  # path of the record
    stacks: str = ""
    lost_nodes: tuple[str, ...] = ()
    nccl: tuple[str, ...] = ()
    nccl_problem: str = ""


class JobEnd(NamedTuple):
    """How a start of the job ended, which it records for clusters without accounting and for jobs that Slurm forgot.

    ``signal`` is ``TERM`` if that ended it, ``due`` why Slurm did (in the words of its line in the log), ``reason``
    Slurm's reason. ``unmarked`` counts the ranks without an end record. ``time`` is in epoch seconds.
    """

    status: int | None = None
    signal: str = ""
    reason: str = ""
    due: str = ""
    unmarked: int | None = None
    cluster: str = ""
    job: str = ""
    restart: int | None = None
    launch: int | None = None
    time: float | None = None


class RankEnd(NamedTuple):
    """The end record of one rank; ``time`` is in epoch seconds."""

    rank: int
    node: str = ""
    status: int | None = None
    time: float | None = None
    error: str = ""


def write_start(folder: Path, backend: str, torch_version: str, ranks: list[dict[str, Any]]) -> None:
    """Write start.json, with an entry for each rank; raises OSError."""
    facts = {"world_size": len(ranks), "backend": backend, "time": time.time(), "torch": torch_version}
    write_record(folder / START, {**facts, "ranks": ranks})


def write_packages(folder: Path, packages: list[str]) -> None:
    """Write packages.json, the Python packages of the first node; raises OSError."""
    write_record(folder / PACKAGES, {"packages": packages})


def write_end(
    slot: rank_records.RankSlot,
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
    document = {"step": step, "reason": reason, "saved": saved, "line": line, "time": time.time()}
    write_record(folder / STOPPED, document)


def claim_first_failure(folder: Path, rank: int, node: str, outcome: Outcome) -> bool:
    """Write first_failure.json unless another rank has. Return whether this rank wrote it. Raises OSError."""
    document = {
        "version": VERSION,
        "rank": rank,
        "node": node,
        "status": outcome.status,
        "error": outcome.error,
        "file": outcome.place[0],
        "line": outcome.place[1],
        "time": time.time(),
        "kind": outcome.kind,
        "values": outcome.values,
    }
    return atomic.create_once(folder / FIRST_FAILURE, json.dumps(document).encode(), file_mode(folder))


def write_job_end(attempt: Path, end: JobEnd) -> None:
    """Write end.json, as of now; raises OSError."""
    write_record(attempt / END, {**end._asdict(), "time": int(time.time())})


def load_job_end(attempt: Path) -> JobEnd | None:
    """Return how a start of the job ended, by its last attempt's folder; None where nothing is recorded."""
    document = read_json(attempt / END)
    return None if document is None else JobEnd(**parse_fields(JobEnd, document))


def load_hold(attempt: Path) -> tuple[int, str]:
    """Return until when a failed job keeps its nodes, in epoch seconds, and the command that opens a shell on one.

    It is 0 and empty without the file; removing that ends the hold.
    """
    hold = read_json(attempt / HOLD) or {}
    return as_int(hold.get("until")) or 0, as_text(hold.get("shell"))


def has_failed(folder: Path) -> bool:
    """Return whether a rank has written first_failure.json."""
    return (folder / FIRST_FAILURE).exists()


def load_start(attempt: Path) -> dict[str, Any] | None:
    """Return start.json, None where there is none; each entry of ``ranks`` has ``rank``, ``task`` and ``node``."""
    start = read_json(attempt / START, _LARGEST_START)
    if start is None:
        return None
    return {**start, "ranks": [entry for entry in as_objects(start.get("ranks")) if _is_whole(entry)]}


def _is_whole(entry: Mapping[str, Any]) -> bool:
    numbers = type(entry.get("rank")), type(entry.get("task"))
    return numbers == (int, int) and isinstance(entry.get("node"), str)


def write_training(attempt: Path, facts: Mapping[str, Any]) -> None:
    """Add facts of a built-in task to training.json; raises OSError."""
    write_record(attempt / TRAINING, {**load_training(attempt), **facts})


def load_training(attempt: Path) -> dict[str, Any]:
    """Return training.json, unchecked; empty where there is none."""
    return read_json(attempt / TRAINING) or {}


def load_packages(attempt: Path) -> list[str]:
    """Return the Python packages of a launch's first node as ``name==version``; empty if they are not known."""
    return as_texts((read_json(attempt / PACKAGES) or {}).get("packages"))


def load_first_failure(attempt: Path) -> dict[str, Any] | None:
    """Return first_failure.json as ``--json`` prints it, None where there is none."""
    document = read_json(attempt / FIRST_FAILURE)
    if document is None:
        return None
    return {key: value for key, value in document.items() if key not in ("version", "kind", "values")}


def find_failure(attempt: Path) -> Failure | None:
    """Return the record of the rank that failed first, None where there is none."""
    document = read_json(attempt / FIRST_FAILURE) or {}
    found = parse_fields(Failure, document)
    if found["rank"] is None:
        return None
    place = f"{found['file']}:{document.get('line')}" if found["file"] else ""
    found |= {"place": place, "file": str(attempt / FIRST_FAILURE), "values": parse_values(document)}
    return Failure(**found)


def find_separate(attempt: Path) -> Failure:
    """Return what rank 0 recorded of ranks that worked as separate programs, though the run succeeded."""
    document = rank_records.load_first_end(attempt)
    return Failure(kind=as_text(document.get("kind")), values=parse_values(document))


def find_stop(attempt: Path) -> Failure | None:
    """Return where a run saved and stopped before its last step, None if it did not."""
    document = read_json(attempt / STOPPED)
    if document is None:
        return None
    values = parse_values({"values": document})
    return Failure(error=values.get("line", ""), kind="stopped", values=values)


def parse_values(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the numbers and texts among the values of a cause, as texts."""
    values = document.get("values")
    if not isinstance(values, dict):
        return {}
    return {name: str(value) for name, value in values.items() if isinstance(value, str | int | float)}


def find_hang(attempt: Path) -> Hang | None:
    """Return why the watchdog ended the launch, None if it did not."""
    document = read_json(attempt / HANG) or {}
    found = parse_fields(Hang, document)
    if not found["cause"]:
        return None
    stacks = str(attempt / "stacks-rank-*.txt") if document.get("stacks") else ""
    nccl = next(iter(as_objects([document.get("nccl")])), {})
    found |= {"file": str(attempt / HANG), "stacks": stacks, "silent": document.get("silent") is True,
              "lost_nodes": tuple(as_texts(document.get("lost_nodes"))),
              "nccl": tuple(as_texts(nccl.get("lines"))), "nccl_problem": as_text(nccl.get("problem"))}  # fmt: skip
    return Hang(**found)


def load_ends(attempt: Path) -> tuple[RankEnd, ...]:
    """Return the end records of the ranks, by rank."""
    ends = (
        RankEnd(**parse_fields(RankEnd, end | {"rank": rank}))
        for rank, end in rank_records.load(attempt, rank_records.END)
    )
    return tuple(sorted(ends, key=lambda end: end.rank))


def load_any_joined_group(attempt: Path) -> bool | None:
    """Return whether any rank joined a process group, by rank 0's end record; None if it is not known."""
    joined = rank_records.load_first_end(attempt).get("any_joined_group")
    return joined if isinstance(joined, bool) else None
