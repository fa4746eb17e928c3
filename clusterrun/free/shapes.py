"""Compute the shapes with the same number of GPUs, what a job of such a shape requests, and where it fits. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from clusterrun.base.units import clause, format_duration, plural
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.jobspec.fields import Value, gres_gpus
from clusterrun.jobspec.spec import JobSpec
from clusterrun.scheduler.slurm.nodes import Gpus, Node, Partition
from clusterrun.scheduler.slurm.values import parse_gpus
from clusterrun.submit.launch_shape import format_options
from clusterrun.submit.request import SubmitArgs

MOST_SHAPES = 4
_GPU_COUNT = re.compile(r"((?:^|,)gpu(?::[^:,()]+)?:)([0-9]+)(?=$|[,(])")
_MEM = re.compile(r"([0-9]+)([KMGT]?)(B?)", re.IGNORECASE)
#: The next smaller unit of memory; one without a unit is in MB.
_SMALLER_UNIT = {"": "K", "M": "K", "G": "M", "T": "G"}


class Shape(NamedTuple):
    """A number of nodes, with a number of GPUs each, of the type ``kind`` ("" for any).

    For a job without GPUs the number of ranks, which need so many ``cpus`` each.
    """

    nodes: int
    each: int
    kind: str = ""
    cpus: int = 0

    @property
    def unit(self) -> str:
        return "rank" if self.cpus else "GPU"

    def __str__(self) -> str:
        return f"{self.nodes}x{self.each}"


def shape_of(spec: JobSpec) -> Shape:
    """Return the requested shape."""
    gres = spec.directive("gres")
    gpus = gres_gpus(gres) if spec.gpus_per_node is None else spec.gpus_per_node
    if not gpus:
        return Shape(spec.allocated_nodes, spec.tasks_per_node, cpus=spec.cpus_per_task or 1)
    requested = parse_gpus(gres)
    kind = requested[0][0] if len(requested) == 1 else ""
    return Shape(spec.allocated_nodes, gpus, kind)


def shapes_alike(asked: Shape, most_each: int) -> list[Shape]:
    """Return the requested shape, then others of the same total that fit on a node, nearest first."""
    total = asked.nodes * asked.each
    sizes = {each for each in range(1, min(total, most_each) + 1) if total % each == 0} - {asked.each}
    others = [asked._replace(nodes=total // each, each=each) for each in sizes]
    others.sort(key=lambda shape: (max(shape.each / asked.each, asked.each / shape.each), -shape.each))
    return [asked, *others[: MOST_SHAPES - 1]]


def reshape_values(values: Mapping[str, Value], asked: Shape, shape: Shape) -> dict[str, Value] | None:
    """Return the values that another shape changes, per-node values in proportion; None if it is not possible."""
    if shape == asked:
        return {}
    if "nodelist" in values:
        return None  # named nodes fix their number
    changed: dict[str, int | str] = {"nodes": shape.nodes}
    if shape.unit == "GPU":
        gpus = _gpus_of_each_node(values, shape.each)
        if gpus is None:
            return None
        changed |= gpus
    if "tasks-per-node" in values:
        tasks, rest = divmod(int(values["tasks-per-node"].value) * shape.each, asked.each)
        if rest:
            return None
        changed["tasks-per-node"] = tasks
    elif shape.unit == "rank":
        changed["tasks-per-node"] = shape.each
    changed |= _memory_of_each_node(values, asked, shape)
    return {name: Value(value, "another shape") for name, value in changed.items()}


def _gpus_of_each_node(values: Mapping[str, Value], number: int) -> dict[str, int | str] | None:
    """Return the option that requests so many GPUs on each node; None if ``--gres`` names several types."""
    gres = _text_of(values, "gres")
    if gres_gpus(gres) is None:
        return {"gpus-per-node": number}
    reshaped, replaced = _GPU_COUNT.subn(rf"\g<1>{number}", gres)
    return {"gres": reshaped} if replaced == 1 else None


def _memory_of_each_node(values: Mapping[str, Value], asked: Shape, shape: Shape) -> dict[str, int | str]:
    """Return ``--mem`` in proportion, in a smaller unit if that makes it a whole number, else rounded up."""
    match = _MEM.fullmatch(_text_of(values, "mem"))
    if match is None or not int(match[1]):  # 0 is all of a node's
        return {}
    number, unit = int(match[1]) * shape.each, match[2]
    if number % asked.each and unit.upper() in _SMALLER_UNIT:
        number, unit = number * 1024, _SMALLER_UNIT[unit.upper()]
    return {"mem": f"{-(-number // asked.each)}{unit}{match[3]}"}


def _text_of(values: Mapping[str, Value], name: str) -> str:
    return str(values[name].value) if name in values else ""


def submit_command(asked: SubmitArgs, changed: Mapping[str, Value]) -> str:
    """Return the typed submit command with these values changed."""
    job = shlex.join(filter(None, [asked.job]))
    profile = clause(shlex.join(filter(None, [asked.profile])), "--profile {}")
    options = format_options({**asked.flags, **changed})
    command = clause(shlex.join(asked.command), "-- {}")
    return " ".join(filter(None, ("clusterrun submit", job, profile, options, command)))


def has_room_now(cluster: ClusterSnapshot, partition: Partition, shape: Shape) -> bool:
    """Return whether enough nodes of a partition have the resources free now."""
    nodes = cluster.nodes_of(partition.name)
    return sum(_count(shape, node.cpus_free, node.gpus_free) >= shape.each for node in nodes) >= shape.nodes


def why_never(cluster: ClusterSnapshot, partition: Partition, spec: JobSpec, shape: Shape) -> str:
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
    return _exceeded(partition, lifted, spec, shape) or _lack_of_nodes(cluster, partition, shape)


def _exceeded(partition: Partition, lifted: frozenset[str], spec: JobSpec, shape: Shape) -> str:
    """Return the partition's own limit that the job exceeds, or ""; flags of a QOS lift a limit."""
    if exceeds_time_limit(partition, spec) and "PartitionTimeLimit" not in lifted:
        return f"the job's time limit exceeds the partition's limit of {format_duration(partition.time_limit)}"
    if shape.nodes < partition.min_nodes and "PartitionMinNodes" not in lifted:
        return f"the partition requires at least {plural(partition.min_nodes, 'node')}"
    most = partition.max_nodes
    if most is None or shape.nodes <= most or "PartitionMaxNodes" in lifted:
        return ""
    return f"the partition allows at most {plural(most, 'node')}"


def exceeds_time_limit(partition: Partition, spec: JobSpec) -> bool:
    """Return whether the job requests more time than the partition allows."""
    return (spec.time_limit or 0) > (partition.time_limit or math.inf)


def _lack_of_nodes(cluster: ClusterSnapshot, partition: Partition, shape: Shape) -> str:
    """Return that too few nodes are large enough, even if all were free, or ""."""
    capacities = [node_capacity(node, shape) for node in cluster.nodes_of(partition.name)]
    largest = max(capacities, default=0)
    large_enough = sum(number >= shape.each for number in capacities)
    if large_enough >= shape.nodes:
        return ""
    if large_enough == len(capacities) > 0:
        return f"the partition has only {plural(large_enough, 'node')}"
    if shape.unit == "GPU":
        kind = clause(shape.kind, " of type {}")
        none, most = f"the partition has no GPUs{kind}", f"at most {largest}"
        room = f"{plural(shape.each, 'GPU')}{kind}"
        at_least = f"at least {room}"
    else:
        none, most = "no node has enough CPUs for a rank", f"enough for at most {largest}"
        room = at_least = f"enough CPUs for {plural(shape.each, 'rank')}"
    if not largest:
        return none
    return f"only {_have(large_enough)} {at_least}" if large_enough else f"no node has {room} ({most})"


def _have(nodes: int) -> str:
    """Return ``1 node has``, ``2 nodes have``."""
    return f"{plural(nodes, 'node')} {'has' if nodes == 1 else 'have'}"


def node_capacity(node: Node, shape: Shape) -> int:
    """Return how many GPUs of the shape's type, or of its ranks, the whole node has room for."""
    return _count(shape, node.cpus, node.gpus)


def _count(shape: Shape, cpus: int, gpus: Gpus) -> int:
    if shape.cpus:
        return cpus // shape.cpus
    return sum(number for kind, number in gpus if shape.kind in ("", kind))
