"""Find the partitions whose jobs are preempted by partitions of a higher tier. Pure.

With ``preempt/partition_prio`` a partition of a higher PriorityTier preempts jobs on the same nodes in partitions whose
PreemptMode is not OFF (slurm.conf(5)).
"""

from __future__ import annotations

from collections.abc import Iterable
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
    sharing: dict[str, set[str]] = {name: set() for name in blocks}
    for names in {node.partitions for node in nodes}:
        for name in names:
            sharing.setdefault(name, set()).update(names)
    found = {}
    for name, block in blocks.items():
        words = block.get("PreemptMode", "OFF").upper().split(",")
        done = next((_DONE[word] for word in words if word in _DONE), "")
        first = tuple(n for n in blocks if n in sharing[name] and _tier(blocks[n]) > _tier(block))
        if done and first:
            found[name] = Preemption(done, first)
    return found


def _tier(block: dict[str, str]) -> int:
    tier = parse_int(block.get("PriorityTier", ""))
    return 1 if tier is None else tier
