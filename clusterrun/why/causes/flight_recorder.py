"""PyTorch's flight recorder dumps: which collective each rank had reached.

A dump is a pickle in a folder that others may write to, and loading a pickle can run any code. torch writes only plain
values (seen: 2.13, format 2.10), so the unpickler here refuses every name.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LARGEST = 64 * 1024 * 1024  # bytes; 2000 entries of a few kB each are a dump


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a flight recorder dump")


@dataclass(frozen=True, slots=True)
class Reached:
    """The last collective that a rank enqueued in each process group, and the name and place of the newest."""

    enqueued: Mapping[str, int]
    last: str = ""
    place: str = ""


def read_dump(data: bytes) -> Reached | None:
    """Return a dump's content, None if it is not a dump of plain values."""
    if len(data) > LARGEST:
        return None
    try:
        dump = _Plain(io.BytesIO(data)).load()
    except Exception:  # the input decides which exception is raised
        return None
    if not isinstance(dump, dict):
        return None
    entries = dump.get("entries")
    entry = entries[-1] if isinstance(entries, list) and entries else None
    enqueued = _enqueued(dump.get("pg_status"))
    if not isinstance(entry, dict):
        return Reached(enqueued)
    return Reached(enqueued, str(entry.get("profiling_name") or ""), _place(entry.get("frames")))


def _enqueued(status: object) -> dict[str, int]:
    """Return the last collective that was enqueued in each process group."""
    enqueued = {}
    for group, values in status.items() if isinstance(status, dict) else ():
        number = values.get("last_enqueued_collective") if isinstance(values, dict) else None
        if type(number) is int:
            enqueued[str(group)] = number
    return enqueued


def ranks_behind(dumps: Mapping[int, Reached]) -> dict[int, str]:
    """Return the ranks that had enqueued fewer collectives than others in a process group, and how far they got."""
    behind: dict[int, str] = {}
    groups = {group for reached in dumps.values() for group in reached.enqueued}
    for group in sorted(groups):
        numbers = {rank: reached.enqueued[group] for rank, reached in dumps.items() if group in reached.enqueued}
        for rank in late_ranks(numbers):
            behind.setdefault(rank, _how_far(rank, numbers[rank], max(numbers.values()), dumps[rank]))
    return behind


def late_ranks(numbers: Mapping[int, int]) -> list[int]:
    """Return the ranks with a lower number than others, if they are at most half."""
    most = max(numbers.values(), default=0)
    late = [rank for rank in sorted(numbers) if numbers[rank] < most]
    return late if 2 * len(late) <= len(numbers) else []


def _how_far(rank: int, number: int, most: int, reached: Reached) -> str:
    ends = f"the flight recorder of rank {rank} ends at collective {number}, but other ranks reached {most}"
    if not reached.place:
        return ends
    return f"{ends}; the rank's last call was {reached.last or 'a collective'} at {reached.place}"


def _place(frames: object) -> str:
    """Return file:line of the innermost frame outside torch."""
    for frame in frames if isinstance(frames, list) else ():
        if isinstance(frame, dict) and "site-packages" not in str(frame.get("filename")):
            return f"{frame.get('filename')}:{frame.get('line')}"
    return ""
