"""Read the files in which the ranks of a run record their start and their end.

``worker/rank/end_records.py`` writes them into the attempt's folder: ``start.json``, ``first_failure.json``,
``stopped`` and the ends of the ranks (``run_folder/rank_records.py``); the supervisor adds ``hang.json``.
Version 1 adds the key ``version`` to the older documents; a newer version may add keys, which are ignored here. Files
may be missing, damaged or another user's: what has the wrong type is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from clusterrun.base.decode import as_objects, as_text, as_texts, parse_fields
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import files
from clusterrun.run_folder import rank_records as slots

START, FIRST_FAILURE, STOPPED, HANG = "start.json", "first_failure.json", "stopped", "hang.json"
PACKAGES = "packages.json"
_LARGEST_START = 128 * 1024 * 1024  # bytes; that of 80,000 ranks has 24 MiB


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
    left their stacks, empty if nowhere.
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


class RankEnd(NamedTuple):
    """The end record of one rank; ``time`` is in epoch seconds."""

    rank: int
    node: str = ""
    status: int | None = None
    time: float | None = None
    error: str = ""


def load_start(attempt: Path) -> dict[str, Any] | None:
    """Return start.json, None where there is none; ``ranks`` is a list of entries with ``rank``, ``task`` and ``node``.

    Older entries have no ``task``: it is their rank.
    """
    start = files.read_json(attempt / START, _LARGEST_START)
    if start is None:
        return None
    ranks = []
    for entry in as_objects(start.get("ranks")):
        whole = {"task": entry.get("rank"), **entry}
        if type(whole.get("rank")) is int and type(whole["task"]) is int and isinstance(whole.get("node"), str):
            ranks.append(whole)
    return {**start, "ranks": ranks}


def load_packages(attempt: Path) -> list[str]:
    """Return the Python packages of a launch's first node as ``name==version``; empty if they are not known."""
    return as_texts((files.read_json(attempt / PACKAGES) or {}).get("packages"))


def load_first_failure(attempt: Path) -> dict[str, Any] | None:
    """Return first_failure.json as ``--json`` prints it, None where there is none."""
    document = files.read_json(attempt / FIRST_FAILURE)
    if document is None:
        return None
    return {key: value for key, value in document.items() if key not in ("version", "kind", "values")}


def find_failure(attempt: Path) -> Failure | None:
    """Return the record of the rank that failed first, None where there is none."""
    document = files.read_json(attempt / FIRST_FAILURE) or {}
    found = parse_fields(Failure, document)
    if found["rank"] is None:
        return None
    place = f"{found['file']}:{document.get('line')}" if found["file"] else ""
    found |= {"place": place, "file": str(attempt / FIRST_FAILURE), "values": parse_values(document)}
    return Failure(**found)


def find_separate(attempt: Path) -> Failure:
    """Return what rank 0 recorded of ranks that worked as separate programs, though the run succeeded."""
    document = slots.load_first_end(attempt)
    return Failure(kind=as_text(document.get("kind")), values=parse_values(document))


def find_stop(attempt: Path) -> Failure | None:
    """Return where a run saved and stopped before its last step, None if it did not."""
    document = files.read_json(attempt / STOPPED)
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
    document = files.read_json(attempt / HANG) or {}
    found = parse_fields(Hang, document)
    if not found["cause"]:
        return None
    stacks = str(attempt / "stacks-rank-*.txt") if document.get("stacks") else ""
    silent = document.get("silent") is True
    return Hang(**{**found, "file": str(attempt / HANG), "stacks": stacks, "silent": silent})


def load_ends(attempt: Path) -> tuple[RankEnd, ...]:
    """Return the end records of the ranks, by rank."""
    ends = (RankEnd(**parse_fields(RankEnd, end | {"rank": rank})) for rank, end in slots.load(attempt, slots.END))
    return tuple(sorted(ends, key=lambda end: end.rank))


def load_any_joined_group(attempt: Path) -> bool | None:
    """Return whether any rank joined a process group, by rank 0's end record; None if it is not known."""
    joined = slots.load_first_end(attempt).get("any_joined_group")
    return joined if isinstance(joined, bool) else None


def were_separate(run: RunRecord, attempt: Path) -> bool:
    """Return whether the ranks never joined a process group, in a run that was not submitted as independent."""
    return run.world_size > 1 and not run.is_independent and load_any_joined_group(attempt) is False


def has_stopped(names: Iterable[str]) -> bool:
    """Return whether an attempt with these files saved and stopped before its last step."""
    return STOPPED in names
