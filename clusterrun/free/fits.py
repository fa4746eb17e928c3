"""Check which partitions could run a job at all, and which have room now. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from clusterrun.free.shapes import Need, Shape
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.jobspec.spec import JobSpec
from clusterrun.scheduler.slurm.nodes import Node, Partition
from clusterrun.terminal.units import format_duration, plural


def check_fit(seen: ClusterSnapshot, partition: Partition, spec: JobSpec, shape: Shape, need: Need) -> tuple[str, bool]:
    """Return why a partition can never run the job, or "", and whether it has room now.

    Slurm takes some such jobs all the same and lets them wait for ever (EnforcePartLimits=NO: seen on 22.05).
    """
    why = next(_never(seen, partition, spec, shape, need), "")
    now = sum(_now(node, need) >= shape.each for node in seen.nodes_of(partition.name)) >= shape.nodes
    return why, now and not why


def _never(seen: ClusterSnapshot, partition: Partition, spec: JobSpec, shape: Shape, need: Need) -> Iterator[str]:
    if why := seen.closed_to(partition, spec.directive("account"), spec.directive("qos")):
        yield why
    if partition.needs_reservation and not spec.directive("reservation"):
        yield "ReqResv=YES: requires --reservation"
    if partition.time_limit and spec.time_limit and spec.time_limit > partition.time_limit:
        yield f"the time limit exceeds the partition's {format_duration(partition.time_limit)}"
    if shape.nodes < partition.min_nodes:
        yield f"the partition requires at least {plural(partition.min_nodes, 'node')}"
    if partition.max_nodes is not None and shape.nodes > partition.max_nodes:
        yield f"the partition allows at most {plural(partition.max_nodes, 'node')}"
    nodes = seen.nodes_of(partition.name)
    fit = sum(node_capacity(node, need) >= shape.each for node in nodes)
    most = max((node_capacity(node, need) for node in nodes), default=0)
    kind = f" of type {need.kind}" if need.kind else ""
    what = plural(shape.each, "GPU") + kind if need.gpus else f"CPUs for {plural(shape.each, 'rank')}"
    if not most:
        yield f"it has no GPUs{kind}" if need.gpus else "no node has enough CPUs for a rank"
    if not fit:
        yield f"no node has {what} (at most {most})"
    if fit < shape.nodes:
        yield f"it has only {plural(fit, 'node')} with {what} or more"


def node_capacity(node: Node, need: Need) -> int:
    """Return how many ranks, or GPUs of a type, a node has in all."""
    if not need.gpus:
        return node.cpus // need.cpus
    return sum(number for kind, number in node.gpus if need.kind in ("", kind))


def _now(node: Node, need: Need) -> int:
    if not need.gpus:
        return node.cpus_free // need.cpus
    return sum(number for kind, number in node.gpus_free if need.kind in ("", kind))
