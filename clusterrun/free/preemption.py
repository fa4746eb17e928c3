"""Find the partitions whose jobs are preempted by partitions of a higher tier. Pure.

With ``preempt/partition_prio`` a partition of a higher PriorityTier preempts jobs on the same nodes in partitions whose
PreemptMode is not OFF (slurm.conf(5)).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clusterrun.scheduler.slurm.nodes import Node
from clusterrun.scheduler.slurm.scontrol import parse_show
from clusterrun.scheduler.slurm.values import parse_int

BY_PARTITION = "preempt/partition_prio"
"""The PreemptType for this; with another one the tiers of partitions preempt no job."""
_DONE = {"REQUEUE": "requeued", "CANCEL": "cancelled", "SUSPEND": "suspended"}
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Preemption:
    """What happens to a partition's jobs (``requeued``, ``cancelled``, ``suspended``), and for which partitions."""

    done: str
    by: tuple[str, ...]

    @property
    def sentence(self) -> str:
        more = f" and {len(self.by) - _SHOWN} more" if len(self.by) > _SHOWN else ""
        first = f"{'partition' if len(self.by) == 1 else 'partitions'} {', '.join(self.by[:_SHOWN])}{more}"
        return f"jobs in this partition may be {self.done} to make room for jobs in {first}"


def find_preemption(partitions: str, nodes: Iterable[Node]) -> dict[str, Preemption]:
    """Return the partitions whose jobs can be preempted, from ``scontrol show partition``."""
    blocks = {block["PartitionName"]: block for block in parse_show(partitions) if block.get("PartitionName")}
    on_same_nodes = _partitions_on_same_nodes(nodes)
    preempted = {}
    for name, block in blocks.items():
        neighbours = on_same_nodes.get(name, set())
        higher = [other for other in blocks if other in neighbours and _tier(blocks[other]) > _tier(block)]
        done = _done_to_jobs(block)
        if done and higher:
            preempted[name] = Preemption(done, tuple(higher))
    return preempted


def _partitions_on_same_nodes(nodes: Iterable[Node]) -> dict[str, set[str]]:
    """Return the partitions that have a node with each partition in common, itself included."""
    neighbours: dict[str, set[str]] = {}
    for partitions in {node.partitions for node in nodes}:
        for name in partitions:
            neighbours.setdefault(name, set()).update(partitions)
    return neighbours


def _done_to_jobs(block: Mapping[str, str]) -> str:
    """Return what preemption does to the partition's jobs, "" for nothing."""
    for mode in block.get("PreemptMode", "OFF").upper().split(","):
        if mode in _DONE:
            return _DONE[mode]
    return ""


def _tier(block: Mapping[str, str]) -> int:
    tier = parse_int(block.get("PriorityTier", ""))
    return 1 if tier is None else tier
