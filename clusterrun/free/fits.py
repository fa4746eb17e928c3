"""Check which partitions could run a job at all, and which have room now. Pure."""

from __future__ import annotations

from clusterrun.base.units import format_duration, plural
from clusterrun.free.shapes import Need, Shape
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.jobspec.spec import JobSpec
from clusterrun.scheduler.slurm.nodes import Gpus, Node, Partition


def has_room_now(cluster: ClusterSnapshot, partition: Partition, shape: Shape, need: Need) -> bool:
    """Return whether enough nodes of a partition have the resources free now."""
    free = [_count(need, node.cpus_free, node.gpus_free) for node in cluster.nodes_of(partition.name)]
    return sum(number >= shape.each for number in free) >= shape.nodes


def why_never(cluster: ClusterSnapshot, partition: Partition, spec: JobSpec, shape: Shape, need: Need) -> str:
    """Return why a partition can never run the job, or "".

    Slurm may accept such a job, which then stays pending forever (EnforcePartLimits=NO, seen on 22.05).
    """
    account, qos = cluster.account_and_qos(spec)
    closed = cluster.closed_to(partition, account, qos)
    if closed:
        return closed
    if partition.needs_reservation and not spec.directive("reservation"):
        return "the partition requires --reservation (ReqResv=YES)"
    lifted = cluster.flags_of(qos) | cluster.flags_of(partition.qos)
    return _exceeded(partition, lifted, spec, shape) or _lack_of_nodes(cluster, partition, shape, need)


def _exceeded(partition: Partition, lifted: frozenset[str], spec: JobSpec, shape: Shape) -> str:
    """Return the partition's own limit that the job exceeds, or ""; flags of a QOS lift a limit."""
    if exceeds_time_limit(partition, spec) and "PartitionTimeLimit" not in lifted:
        return f"the job's time limit exceeds the partition's limit of {format_duration(partition.time_limit)}"
    if shape.nodes < partition.min_nodes and "PartitionMinNodes" not in lifted:
        return f"the partition requires at least {plural(partition.min_nodes, 'node')}"
    most = shape.nodes if partition.max_nodes is None else partition.max_nodes
    if shape.nodes > most and "PartitionMaxNodes" not in lifted:
        return f"the partition allows at most {plural(most, 'node')}"
    return ""


def exceeds_time_limit(partition: Partition, spec: JobSpec) -> bool:
    """Return whether the job requests more time than the partition allows."""
    if not partition.time_limit or not spec.time_limit:
        return False
    return spec.time_limit > partition.time_limit


def _lack_of_nodes(cluster: ClusterSnapshot, partition: Partition, shape: Shape, need: Need) -> str:
    """Return that too few nodes are large enough, even if all were free, or ""."""
    capacities = [node_capacity(node, need) for node in cluster.nodes_of(partition.name)]
    largest = max(capacities, default=0)
    large_enough = sum(number >= shape.each for number in capacities)
    if large_enough >= shape.nodes:
        return ""
    if need.gpus:
        return _lack_of_gpus(shape, need, large_enough, largest)
    if not largest:
        return "no node has enough CPUs for a rank"
    cpus = f"enough CPUs for {plural(shape.each, 'rank')}"
    if not large_enough:
        return f"no node has {cpus} (enough for at most {largest})"
    return f"only {_have(large_enough)} {cpus}"


def _lack_of_gpus(shape: Shape, need: Need, large_enough: int, largest: int) -> str:
    """Return why so many nodes, the largest with so many GPUs of the type, are too few."""
    kind = f" of type {need.kind}" if need.kind else ""
    if not largest:
        return f"the partition has no GPUs{kind}"
    gpus = f"{plural(shape.each, 'GPU')}{kind}"
    if not large_enough:
        return f"no node has {gpus} (at most {largest})"
    return f"only {_have(large_enough)} at least {gpus}"


def _have(nodes: int) -> str:
    """Return ``1 node has``, ``2 nodes have``."""
    return f"{plural(nodes, 'node')} {'has' if nodes == 1 else 'have'}"


def node_capacity(node: Node, need: Need) -> int:
    """Return how many ranks, or GPUs of the type, the whole node has room for."""
    return _count(need, node.cpus, node.gpus)


def _count(need: Need, cpus: int, gpus: Gpus) -> int:
    if not need.gpus:
        return cpus // need.cpus
    return sum(number for kind, number in gpus if need.kind in ("", kind))
