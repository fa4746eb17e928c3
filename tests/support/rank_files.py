"""The records of ranks, as tests write and read them; each rank is the first of its node, `node-RANK.ranks`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterrun.run_folder.rank_records import HALF, RankSlot, path_of, read
from clusterrun.worker.rank.distenv import DistEnv
from clusterrun.worker.rank.progress import Progress, Recorder


def put_progress(folder: Path, rank: int, document: Mapping[str, Any]) -> Path:
    """Write the progress record of a rank; return its file."""
    slot = RankSlot(folder, rank, 0)
    slot.write_progress(dict(document))
    slot.close()
    return slot.path


def put_end(folder: Path, rank: int, document: Mapping[str, Any]) -> Path:
    """Write the end record of a rank; return its file."""
    slot = RankSlot(folder, rank, 0)
    slot.write_end(dict(document))
    slot.close()
    return slot.path


def put_bytes(folder: Path, rank: int, data: bytes, offset: int = 0) -> Path:
    """Write bytes in the place of a rank's progress record; with the offset HALF of its end record."""
    path = path_of(folder, rank)
    whole = path.read_bytes() if path.exists() else b""
    path.write_bytes(whole[:offset].ljust(offset, b"\0") + data[:HALF].ljust(HALF) + whole[offset + HALF :])
    return path


def progress_of(folder: Path) -> dict[int, dict[str, Any]]:
    """The progress records in an attempt's folder, by rank."""
    return read(folder)[0]


def ends_of(folder: Path) -> dict[int, dict[str, Any]]:
    """The end records in an attempt's folder, by rank."""
    return read(folder)[1]


def place(rank: int = 0, world_size: int = 4) -> DistEnv:
    """Return the place of a rank, two of which share a node."""
    return DistEnv(rank, rank % 2, world_size, 2, rank // 2, "node1", "host1", rank, "slurm", ("node1", 1))


def recorder(progress: Progress, folder: Path, **settings: Any) -> Recorder:
    """Return what writes the record of a rank, which has the place that the settings give."""
    return Recorder(progress, place(**settings), folder, every=10.0)
