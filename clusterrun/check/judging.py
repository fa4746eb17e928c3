"""What all checks share: a finding, and the rules by which values are compared. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, TypeVar

from clusterrun.scheduler.slurm.hostlist import fold

OK, DIFFERS, UNKNOWN = "ok", "differs", "unknown"
Value = TypeVar("Value", bound=Hashable)


class Finding(NamedTuple):
    """The result of one check: ``status`` is ok, differs or unknown, ``text`` has the values, ``action`` what to do."""

    status: str
    check: str
    text: str
    action: str = ""
    where: tuple[str, ...] = ()  # nodes

    def json(self) -> dict[str, Any]:
        """Return the finding for ``--json``."""
        return {**self._asdict(), "where": list(self.where)}


class Tries(NamedTuple):
    """The best and the worst of several measurements of one thing; larger is better."""

    best: float
    worst: float


def is_slow(one: Tries, others: Sequence[Tries], share: float) -> bool:
    """Return whether the best of a measurement is well below that of its peers, beyond their noise.

    Well below is less than ``share`` of the median. The noise is how far the peers' own tries are apart: a value that a
    typical peer has in its worst try is not slow.
    """
    if not others:
        return False
    steady = median(other.worst / other.best if other.best > 0 else 1.0 for other in others)
    return one.best < median(other.best for other in others) * min(share, steady)


def group_by_value(values: Mapping[str, Value]) -> dict[Value, list[str]]:
    """Return the names of each value, the most frequent value first."""
    groups: dict[Value, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def format_groups(groups: Mapping[Any, Sequence[str]]) -> str:
    """Return values with the nodes that have them: ``2.6 on node[1-2], 2.5 on node3``."""
    return ", ".join(f"{value or 'none'} on {fold(names)}" for value, names in groups.items())
