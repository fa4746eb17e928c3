"""Read the records of the ranks in an attempt's folder: progress (heartbeats) and ends.

The worker writes a file for each node, ``node-R.ranks``, with a slot for each of its ranks (``worker/rank_slots.py``).
Earlier versions wrote ``rank-N.progress`` and ``rank-N.end``. Files may be missing, cut off or another user's. A record
that a write tears is read once more; what is still damaged is left out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterrun.records import run_record
from clusterrun.system import safe_files

_HALF = 1024  # bytes of a record; a rank has two
_SLOT = 2 * _HALF
_LARGEST = 4096 * _SLOT  # bytes of a file
_NODE = re.compile(r"node-(\d{1,7})\.ranks", re.ASCII)
_OLD = re.compile(r"rank-(\d{1,7})\.(progress|end)", re.ASCII)
_KINDS = ("progress", "end")  # in their order in a slot


def load_progress(attempt: Path) -> dict[int, dict[str, Any]]:
    """Return the newest progress record of each rank, by rank."""
    return _load(attempt, "progress")


def load_ends(attempt: Path) -> dict[int, dict[str, Any]]:
    """Return the end record of each rank that has ended, by rank."""
    return _load(attempt, "end")


def load_first_end(attempt: Path) -> dict[str, Any]:
    """Return the end record of rank 0, empty if there is none; it reads one file."""
    try:
        with safe_files.open_folder(attempt) as folder:
            found = dict(_of_node(folder, 0, "end"))
    except OSError:
        found = {}
    return found.get(0) or run_record.read_json(attempt / "rank-0.end") or {}


def _load(attempt: Path, kind: str) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    try:
        with safe_files.open_folder(attempt) as folder:
            for name in folder.names():
                if match := _NODE.fullmatch(name):
                    found.update(_of_node(folder, int(match[1]), kind))
                elif (match := _OLD.fullmatch(name)) and match[2] == kind:
                    record = run_record.read_json(attempt / name)
                    found |= {int(match[1]): record} if record is not None else {}
    except OSError:
        pass
    return dict(sorted(found.items()))


def _of_node(folder: safe_files.Folder, first_rank: int, kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        descriptor, size = folder.open_file(f"node-{first_rank}.ranks")
    except OSError:
        return
    try:
        data = os.pread(descriptor, size, 0) if size <= _LARGEST else b""
        for at in range(_HALF * _KINDS.index(kind), len(data), _SLOT):
            if data[at] != ord("{"):  # empty
                continue
            record = _parse(data[at : at + _HALF])
            if record is None:
                record = _parse(os.pread(descriptor, _HALF, at))
            if record is not None:
                yield first_rank + at // _SLOT, record
    except OSError:
        return
    finally:
        os.close(descriptor)


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
