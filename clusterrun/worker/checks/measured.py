"""What the rules of a check share: measured links, and what counts as slow. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, TypeVar

SEE_LOG = "see the job's log"
SHOWN = 8  # names in a line
Key = TypeVar("Key", bound=Hashable)
Doc = Mapping[str, Any]  # what a rank found


class Tries(NamedTuple):
    """The best and the worst of several measurements of one thing; larger is better."""

    best: float
    worst: float


class Link(NamedTuple):
    """All-reduces of one size in a group of ranks: ``kind`` is node, pair or all; ``busbw`` in bytes/s, or None."""

    kind: str
    nodes: tuple[str, ...]
    ranks: int
    size: int = 0
    busbw: Tries | None = None
    correct: bool = True
    error: str = ""


def find_slow(measured: Mapping[Key, Tries], share: float) -> dict[Key, float]:
    """Return what is well below its peers and beyond their noise, with the median of the peers.

    Well below is less than ``share`` of the median. The noise is how far the peers' own tries are apart: a value that a
    typical peer has in its worst try is not slow.
    """
    found = {}
    for key, one in measured.items():
        peers = [peer for name, peer in measured.items() if name != key]
        if not peers:
            continue
        steady = median(peer.worst / peer.best if peer.best > 0 else 1.0 for peer in peers)
        middle = median(peer.best for peer in peers)
        if one.best < middle * min(share, steady):
            found[key] = middle
    return found


def group_by_value(values: Mapping[Any, Key]) -> dict[Key, list[Any]]:
    """Return the names of each value, the most frequent value first."""
    groups: dict[Key, list[Any]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def join_names(names: Sequence[Any]) -> str:
    """Return names in one line, the first few of many."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(str, names[:SHOWN])) + more
