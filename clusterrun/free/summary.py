"""Sum up what is free in each partition, and group similar nodes into rows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterrun.free.snapshot import ClusterSnapshot, Preemption
from clusterrun.scheduler.slurm.hostlist import fold
from clusterrun.scheduler.slurm.nodes import OPEN, OUT, Node, Partition

#: The states of nodes in the order in which a partition's row counts them; others come last.
_STANDINGS = (*OPEN, "allocated", "completing", "powered down", "reserved")


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


def partition_sums(cluster: ClusterSnapshot) -> list[PartitionSum]:
    """Return all partitions in Slurm's order, closed ones last."""
    rows = [_sum(cluster, partition) for partition in cluster.partitions]
    return sorted(rows, key=lambda row: bool(row.closed))


def _sum(cluster: ClusterSnapshot, partition: Partition) -> PartitionSum:
    nodes = cluster.nodes_of(partition.name)
    unit, free, total = _count(nodes)
    standings = Counter(node.standing for node in nodes)
    return PartitionSum(
        partition=partition,
        unit=unit,
        free=sum(free.values()),
        total=sum(total.values()),
        types=tuple((kind, free[kind], total[kind]) for kind in sorted(total) if kind),
        standings=tuple(sorted(standings.items(), key=_order_of_standing)),
        untold=sum(node.gpus_used is None for node in nodes),
        closed=cluster.closed(partition),
        preemption=cluster.preempted.get(partition.name),
    )


def _count(nodes: Iterable[Node]) -> tuple[str, Counter[str], Counter[str]]:
    """Return the free GPUs and all, by type; for nodes without GPUs their CPUs, which have no types."""
    free: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for node in nodes:
        free.update(dict(node.gpus_free))
        total.update(dict(node.gpus))
    if total:
        return "GPUs", free, total
    for node in nodes:
        free[""] += node.cpus_free
        total[""] += node.cpus
    return "CPUs", free, total


def _order_of_standing(count: tuple[str, int]) -> tuple[int, str]:
    standing, _ = count
    return _STANDINGS.index(standing) if standing in _STANDINGS else len(_STANDINGS), standing


def node_rows(nodes: Iterable[Node]) -> list[NodeRow]:
    """Return the nodes, similar ones in one row; most free first, then by state."""
    alike: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        # one command may mark many nodes a moment apart: the day is enough
        day = node.reason_at // 86_400 if node.reason_at else None
        key = (node.standing, node.partitions, _state(node), node.cpus, node.reason, node.reason_by, day)
        alike.setdefault(key, []).append(node)
    return sorted(map(_row, alike.values()), key=_order)


def _state(node: Node) -> tuple[object, ...]:
    """Return what a row says of each of its nodes."""
    if node.standing in OUT:
        return (node.gpus,)  # what still runs there does not matter
    if node.gpus:
        return (node.full, node.gpus, node.gpus_idle)
    return (node.full, node.cpus_free)


def _order(row: NodeRow) -> tuple[object, ...]:
    return row.unit != "GPUs", -row.free, row.standing, row.names


def _row(alike: Sequence[Node]) -> NodeRow:
    node = alike[0]
    unit, free, idle, total = _amounts(node)
    marked_at = [node.reason_at for node in alike if node.reason_at]
    return NodeRow(
        names=tuple(node.name for node in alike),
        partitions=node.partitions,
        standing=node.standing,
        unit=unit,
        free=free,
        idle=idle,
        total=total,
        types=tuple(pair for pair in node.gpus_free if pair[0]),
        full=node.full,
        reason=node.reason,
        by=node.reason_by,
        since=min(marked_at, default=None),
    )


def _amounts(node: Node) -> tuple[str, int, int, int]:
    """Return a node's unit, and how many are free, idle and there."""
    if node.gpus:
        return "GPUs", node.gpu_free, sum(dict(node.gpus_idle).values()), node.gpu_total
    return "CPUs", node.cpus_free, max(0, node.cpus - node.cpus_used), node.cpus
