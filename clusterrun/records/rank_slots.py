"""Read the records of the ranks in an attempt's folder: progress (heartbeats) and ends.

The worker writes a file for each node, ``node-R.ranks``, with a slot for each of its ranks (``worker/rank_slots.py``).
Earlier versions wrote ``rank-N.progress`` and ``rank-N.end``. Files may be missing, cut off or another user's. A record
that a write tears is read once more; what is still damaged is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterrun.base.decode import Damaged, parse_object, parse_unchecked
from clusterrun.run_folder import files, safe_files

_HALF = 1024  # bytes of a record; a rank has two
_SLOT = 2 * _HALF
_LARGEST = 4096 * _SLOT  # bytes of a file
_NODE = re.compile(r"node-(\d{1,7})\.ranks", re.ASCII)
_OLD = re.compile(r"rank-(\d{1,7})\.(progress|end)", re.ASCII)
_KINDS = ("progress", "end")  # in their order in a slot


def load_progress(attempt: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each rank with its newest progress record, in no order."""
    return _load(attempt, "progress")


def load_ends(attempt: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each rank that has ended with its end record, in no order."""
    return _load(attempt, "end")


def load_first_end(attempt: Path) -> dict[str, Any]:
    """Return the end record of rank 0, empty if there is none; it reads one file."""
    try:
        with safe_files.open_folder(attempt) as folder:
            found = dict(_of_node(folder, 0, "end"))
    except OSError:
        found = {}
    return found.get(0) or files.read_json(attempt / "rank-0.end") or {}


def _load(attempt: Path, kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
    # one by one: with 80,000 of them in memory the garbage collector would take as long as the reading
    try:
        with safe_files.open_folder(attempt) as folder:
            for name in folder.names():
                if match := _NODE.fullmatch(name):
                    yield from _of_node(folder, int(match[1]), kind)
                elif (match := _OLD.fullmatch(name)) and match[2] == kind:
                    record = files.read_json(attempt / name)
                    if record is not None:
                        yield int(match[1]), record
    except OSError:
        return


def _of_node(folder: safe_files.Folder, first_rank: int, kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        descriptor, size = folder.open_file(f"node-{first_rank}.ranks")
    except OSError:
        return
    try:
        data = os.pread(descriptor, size, 0) if size <= _LARGEST else b""
        filled = [at for at in range(_HALF * _KINDS.index(kind), len(data), _SLOT) if data[at] == ord("{")]
        # a third faster than one by one, as the keys are the same
        records = _parse_list([data[at : at + _HALF] for at in filled])
        for at, first in zip(filled, records, strict=True):
            record = _parse(os.pread(descriptor, _HALF, at)) if first is None else first
            if record is not None:
                yield first_rank + at // _SLOT, record
    except OSError:
        return
    finally:
        os.close(descriptor)


def _parse_list(texts: list[bytes]) -> list[dict[str, Any] | None]:
    """Return what _parse returns for each."""
    try:
        found = parse_unchecked(b"[" + b",".join(texts) + b"]")
    except Damaged:
        return [*map(_parse, texts)]
    if len(found) == len(texts) and all(isinstance(record, dict) for record in found):
        return list(found)
    return [*map(_parse, texts)]


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        return parse_object(data)
    except Damaged:
        return None
