"""Read the files in which the ranks of a run record their start and their end.

The worker writes them (``worker/end_records.py``) into the attempt's folder: ``start.json``, ``rank-N.end``,
``first_failure.json`` and ``stopped``. Version 1 adds the key ``version`` to the older documents; a newer version may
add keys, which are ignored here. Files may be missing, damaged or another user's: what has the wrong type is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord

START, FIRST_FAILURE, STOPPED = "start.json", "first_failure.json", "stopped"
_RANK_END = re.compile(r"rank-\d{1,7}\.end")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """The record of the rank that failed first (``first_failure.json``)."""

    rank: int
    node: str = ""
    status: int | None = None
    error: str = ""
    place: str = ""  # file:line
    file: str = ""  # path of the record


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """The end record of one rank (``rank-N.end``); ``time`` is in epoch seconds."""

    rank: int
    node: str = ""
    status: int | None = None
    time: float | None = None
    error: str = ""


def load_start(attempt: Path) -> dict[str, Any] | None:
    """Return start.json, None where there is none; ``ranks`` is a list of entries with ``rank``, ``task`` and ``node``.

    Older entries have no ``task``: it is their rank.
    """
    start = run_record.read_json(attempt / START)
    if start is None:
        return None
    entries = start.get("ranks")
    ranks = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and type(entry.get("rank")) is int and isinstance(entry.get("node"), str):
            ranks.append({"task": entry["rank"], **entry})
    return {**start, "ranks": ranks}


def load_first_failure(attempt: Path) -> dict[str, Any] | None:
    """Return first_failure.json without its version, None where there is none."""
    document = run_record.read_json(attempt / FIRST_FAILURE)
    return None if document is None else {key: value for key, value in document.items() if key != "version"}


def find_failure(attempt: Path) -> RankFailure | None:
    """Return the record of the rank that failed first, None where there is none."""
    document = load_first_failure(attempt)
    if document is None or type(document.get("rank")) is not int:
        return None
    return RankFailure(
        rank=document["rank"],
        node=str(document.get("node") or ""),
        status=_status(document),
        error=str(document.get("error") or ""),
        place=f"{document['file']}:{document.get('line')}" if isinstance(document.get("file"), str) else "",
        file=str(attempt / FIRST_FAILURE),
    )


def load_ends(attempt: Path) -> tuple[RankEnd, ...]:
    """Return the end records of the ranks, by rank."""
    found = []
    for name in run_record.list_names(attempt):
        document = run_record.read_json(attempt / name) if _RANK_END.fullmatch(name) else None
        if document is None or type(document.get("rank")) is not int:
            continue
        time = document.get("time")
        found.append(
            RankEnd(
                rank=document["rank"],
                node=str(document.get("node") or ""),
                status=_status(document),
                time=float(time) if isinstance(time, int | float) else None,
                error=str(document.get("error") or ""),
            )
        )
    return tuple(sorted(found, key=lambda end: end.rank))


def load_any_joined_group(attempt: Path) -> bool | None:
    """Return whether any rank joined a process group, by rank 0's end record; None if it is not known."""
    joined = (run_record.read_json(attempt / "rank-0.end") or {}).get("any_joined_group")
    return joined if isinstance(joined, bool) else None


def were_separate(run: RunRecord, attempt: Path) -> bool:
    """Return whether the ranks never joined a process group, in a run that was not submitted as independent."""
    independent = run.sources.get("independent", (False, ""))[0] is True
    return run.world_size > 1 and not independent and load_any_joined_group(attempt) is False


def has_stopped(names: Iterable[str]) -> bool:
    """Return whether an attempt with these files saved and stopped before its last step."""
    return STOPPED in names


def _status(document: dict[str, Any]) -> int | None:
    status = document.get("status")
    return status if type(status) is int else None
