"""Sum up what is free in each partition, and group similar nodes into rows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from clusterrun.free.preemption import Preemption
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.scheduler.slurm.hostlist import fold
from clusterrun.scheduler.slurm.nodes import OPEN, OUT, Node, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSum:
    """A partition in one row: ``free`` of ``total`` GPUs, or CPUs without GPUs.

    ``types`` are (GPU type, free, total) of named types; ``standings`` counts nodes by state; ``untold`` counts nodes
    of unknown use; ``closed`` is why the user may not use it; ``preemption`` is set if its jobs can be preempted.
    """

    partition: Partition
    unit: str
    free: int
    total: int
    types: tuple[tuple[str, int, int], ...]
    standings: tuple[tuple[str, int], ...]
    untold: int
    closed: str
    preemption: Preemption | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """Similar nodes: ``free`` and ``idle`` GPUs (or CPUs) of each, and why they are out of service."""

    names: tuple[str, ...]
    partitions: tuple[str, ...]
    standing: str
    unit: str
    free: int
    idle: int
    total: int
    types: tuple[tuple[str, int], ...]
    full: str
    reason: str
    by: str
    since: int | None

    @property
    def folded(self) -> str:
        return fold(self.names)


def partition_sums(seen: ClusterSnapshot) -> list[PartitionSum]:
    """Return all partitions in Slurm's order, closed ones last."""
    rows = [_sum(seen, partition) for partition in seen.partitions]
    return sorted(rows, key=lambda row: bool(row.closed))


def _sum(seen: ClusterSnapshot, partition: Partition) -> PartitionSum:
    nodes = seen.nodes_of(partition.name)
    gpus = any(node.gpus for node in nodes)
    free: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for node in nodes:
        free.update(dict(node.gpus_free) if gpus else {"": node.cpus_free})
        total.update(dict(node.gpus) if gpus else {"": node.cpus})
    standings = Counter(node.standing for node in nodes)
    order = (*OPEN, "allocated", "completing", "powered down", "reserved")
    return PartitionSum(
        partition=partition,
        unit="GPUs" if gpus else "CPUs",
        free=sum(free.values()),
        total=sum(total.values()),
        types=tuple((kind, free[kind], total[kind]) for kind in sorted(total) if kind),
        standings=tuple(sorted(standings.items(), key=lambda s: (order.index(s[0]) if s[0] in order else 99, s[0]))),
        untold=sum(node.gpus_used is None for node in nodes),
        closed=seen.closed(partition),
        preemption=seen.preempted.get(partition.name),
    )


def node_rows(nodes: Iterable[Node]) -> list[NodeRow]:
    """Return the nodes, similar ones in one row; most free first, then by state."""
    alike: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        per_node: tuple[object, ...] = (node.full, *((node.gpus, node.gpus_idle) if node.gpus else (node.cpus_free,)))
        if node.standing in OUT:
            per_node = (node.gpus,)  # what still runs there does not matter
        # one command may mark many nodes a moment apart: the day is enough
        day = node.reason_at // 86_400 if node.reason_at else None
        key = (node.standing, node.partitions, per_node, node.cpus, node.reason, node.reason_by, day)
        alike.setdefault(key, []).append(node)
    return sorted((_row(same) for same in alike.values()), key=_order)


def _order(row: NodeRow) -> tuple[object, ...]:
    return row.unit != "GPUs", -row.free, row.standing, row.names


def _row(same: list[Node]) -> NodeRow:
    one = same[0]
    gpus = bool(one.gpus)
    return NodeRow(
        names=tuple(node.name for node in same),
        partitions=one.partitions,
        standing=one.standing,
        unit="GPUs" if gpus else "CPUs",
        free=one.gpu_free if gpus else one.cpus_free,
        idle=sum(number for _, number in one.gpus_idle) if gpus else max(0, one.cpus - one.cpus_used),
        total=one.gpu_total if gpus else one.cpus,
        types=tuple(pair for pair in one.gpus_free if pair[0]),
        full=one.full,
        reason=one.reason,
        by=one.reason_by,
        since=min((node.reason_at for node in same if node.reason_at), default=None),
    )
