"""PyTorch's flight recorder dumps: which collective each rank had reached.

A dump is a pickle in a folder that others may write to, and loading a pickle can run any code. torch writes only plain
values (seen: 2.13, format 2.10), so the unpickler here refuses every name.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from clusterrun.base.decode import as_objects
from clusterrun.base.units import clause


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a flight recorder dump")


def read_dump(data: bytes) -> tuple[Mapping[str, int], str] | None:
    """Return the last collective that a rank enqueued in each process group, and its last call and place in words.

    None if it is not a dump of plain values; the words are empty if the place is not known.
    """
    try:
        dump = _Plain(io.BytesIO(data)).load()
    except Exception:  # the input decides which exception is raised
        return None
    if not isinstance(dump, dict):
        return None
    last_call = ""
    for entry in as_objects(dump.get("entries"))[-1:]:
        place = _place(as_objects(entry.get("frames")))
        if place:
            last_call = f"{entry.get('profiling_name') or 'a collective'} at {place}"
    return _enqueued(dump.get("pg_status")), last_call


def _enqueued(status: object) -> dict[str, int]:
    """Return the last collective that was enqueued in each process group."""
    enqueued = {}
    for group, values in status.items() if isinstance(status, dict) else ():
        number = values.get("last_enqueued_collective") if isinstance(values, dict) else None
        if type(number) is int:
            enqueued[str(group)] = number
    return enqueued


def ranks_behind(dumps: Mapping[int, tuple[Mapping[str, int], str]]) -> dict[int, str]:
    """Return the ranks that had enqueued fewer collectives than others in a process group, and how far they got."""
    by_group: dict[str, dict[int, int]] = {}
    for rank, (enqueued, _) in dumps.items():
        for group, number in enqueued.items():
            by_group.setdefault(group, {})[rank] = number
    behind: dict[int, str] = {}
    for _, numbers in sorted(by_group.items()):
        most = max(numbers.values())
        for rank in late_ranks(numbers):
            _, last_call = dumps[rank]
            ends = f"the flight recorder of rank {rank} ends at collective {numbers[rank]}"
            after = clause(last_call, "; the rank's last call was {}")
            behind.setdefault(rank, f"{ends}, but other ranks reached {most}{after}")
    return behind


def late_ranks(numbers: Mapping[int, int]) -> list[int]:
    """Return the ranks with a lower number than others, if they are at most half."""
    most = max(numbers.values(), default=0)
    late = [rank for rank in sorted(numbers) if numbers[rank] < most]
    return late if 2 * len(late) <= len(numbers) else []


def _place(frames: Sequence[Mapping[str, object]]) -> str:
    """Return file:line of the innermost frame outside torch."""
    for frame in frames:
        if "site-packages" not in str(frame.get("filename")):
            return f"{frame.get('filename')}:{frame.get('line')}"
    return ""
