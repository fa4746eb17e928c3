"""The files of the ranks of `clusterrun check`, as values of the expected types.

The worker's ``checks/`` writes ``rank-N.check`` into the attempt's folder; a rank that was killed leaves what it had.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.check.judging import Tries
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord

_NAME = re.compile(r"rank-\d{1,7}\.check")
FINISHED = "done"


class Rank(NamedTuple):
    """What one rank measured. ``data`` is its whole document; ``stage`` is done, or where it stopped."""

    rank: int
    local_rank: int
    node: str
    stage: str
    data: Mapping[str, Any]

    @property
    def errors(self) -> dict[str, str]:
        """Why stages were not measured, by stage."""
        return {stage: str(error) for stage, error in table(self.data, "errors").items()}


class Link(NamedTuple):
    """All-reduces of one size in a group of ranks: ``kind`` is node, pair or all; ``busbw`` in bytes/s, or None."""

    kind: str
    nodes: tuple[str, ...]
    ranks: int
    size: int
    busbw: Tries | None
    correct: bool
    error: str

    def json(self) -> dict[str, Any]:
        """Return the link for ``--json``."""
        return {**self._asdict(), "nodes": list(self.nodes), "busbw": self.busbw and self.busbw.best}


def load_ranks(attempt: Path) -> list[Rank]:
    """Return what the ranks wrote, by rank."""
    found = []
    for name in run_record.list_names(attempt):
        data = run_record.read_json(attempt / name) if _NAME.fullmatch(name) else None
        if data is None:
            continue
        rank, local, node = (
            run_record.as_int(data.get("rank")),
            run_record.as_int(data.get("local_rank")),
            data.get("node"),
        )
        if rank is not None and local is not None and isinstance(node, str):
            found.append(Rank(rank, local, node, str(data.get("stage", "")), data))
    return sorted(found, key=lambda one: one.rank)


def load_attempt(run: RunRecord) -> list[Rank]:
    """Return what the ranks of a run's newest attempt wrote; none before it starts."""
    folders = run_record.attempts(run)
    return load_ranks(folders[-1]) if folders else []


def load_links(ranks: Sequence[Rank]) -> list[Link]:
    """Return the all-reduces that the ranks measured, and the errors of each."""
    return [link for rank in ranks for entry in _list(rank.data.get("links")) if (link := _parse_link(entry))]


def _parse_link(entry: object) -> Link | None:
    if not isinstance(entry, Mapping):
        return None
    nodes = tuple(node for node in _list(entry.get("nodes")) if isinstance(node, str))
    ranks, size = run_record.as_int(entry.get("ranks")), run_record.as_int(entry.get("bytes")) or 0
    if not nodes or not ranks:
        return None
    seconds = [s for s in map(as_float, _list(entry.get("seconds"))) if s is not None and s > 0]
    moved = 2 * (ranks - 1) / ranks * size  # bytes over the slowest link of a ring
    busbw = Tries(moved / min(seconds), moved / max(seconds)) if seconds and size else None
    error = entry.get("error")
    correct = entry.get("correct") is not False
    return Link(str(entry.get("kind")), nodes, ranks, size, busbw, correct, error if isinstance(error, str) else "")


def table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object within a document; an empty one if it is absent or of another type."""
    value = data.get(name)
    return value if isinstance(value, Mapping) else {}


def number(data: Mapping[str, Any], name: str) -> float | None:
    """Return a number within a document, or None."""
    return as_float(data.get(name))


def texts(value: object) -> list[str]:
    """Return the texts of a list; none if it is not a list."""
    return [one for one in _list(value) if isinstance(one, str)]


def as_float(value: object) -> float | None:
    """Return a number as a float; None for anything else."""
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63 else None
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
