"""Check which partitions could run a job at all, and which have room now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clusterrun.base.units import format_duration, plural
from clusterrun.free.shapes import Need, Shape
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.jobspec.spec import JobSpec
from clusterrun.scheduler.slurm.nodes import Node, Partition


def check_fit(seen: ClusterSnapshot, partition: Partition, spec: JobSpec, shape: Shape, need: Need) -> tuple[str, bool]:
    """Return why a partition can never run the job, or "", and whether it has room now.

    Slurm may accept such a job, which then stays pending forever (EnforcePartLimits=NO, seen on 22.05).
    """
    why = next(_obstacles(seen, partition, spec, shape, need), "")
    now = sum(_capacity_now(node, need) >= shape.each for node in seen.nodes_of(partition.name)) >= shape.nodes
    return why, now and not why


def _obstacles(seen: ClusterSnapshot, partition: Partition, spec: JobSpec, shape: Shape, need: Need) -> Iterator[str]:
    if why := seen.closed_to(partition, spec.directive("account"), spec.directive("qos")):
        yield why
    if partition.needs_reservation and not spec.directive("reservation"):
        yield "the partition requires --reservation (ReqResv=YES)"
    flags = seen.flags_of(partition, spec.directive("account"), spec.directive("qos"))  # these lift a limit
    over_time = partition.time_limit and spec.time_limit and spec.time_limit > partition.time_limit
    if over_time and "PartitionTimeLimit" not in flags:
        yield f"the job's time limit exceeds the partition's limit of {format_duration(partition.time_limit)}"
    if shape.nodes < partition.min_nodes and "PartitionMinNodes" not in flags:
        yield f"the partition requires at least {plural(partition.min_nodes, 'node')}"
    most = partition.max_nodes
    if most is not None and shape.nodes > most and "PartitionMaxNodes" not in flags:
        yield f"the partition allows at most {plural(most, 'node')}"
    capacities = [node_capacity(node, need) for node in seen.nodes_of(partition.name)]
    fit, largest = sum(number >= shape.each for number in capacities), max(capacities, default=0)
    kind = f" of type {need.kind}" if need.kind else ""
    what = plural(shape.each, "GPU") + kind if need.gpus else f"enough CPUs for {plural(shape.each, 'rank')}"
    if not largest:
        yield f"the partition has no GPUs{kind}" if need.gpus else "no node has enough CPUs for a rank"
    if not fit:
        yield f"no node has {what} ({'' if need.gpus else 'enough for '}at most {largest})"
    if fit < shape.nodes:
        has = "has" if fit == 1 else "have"
        yield f"only {plural(fit, 'node')} {has} {'at least ' if need.gpus else ''}{what}"


def node_capacity(node: Node, need: Need) -> int:
    """Return how many ranks, or GPUs of the type, the whole node has room for."""
    return _count(need, node.cpus, node.gpus)


def _capacity_now(node: Node, need: Need) -> int:
    return _count(need, node.cpus_free, node.gpus_free)


def _count(need: Need, cpus: int, gpus: Iterable[tuple[str, int]]) -> int:
    if not need.gpus:
        return cpus // need.cpus
    return sum(number for kind, number in gpus if need.kind in ("", kind))
