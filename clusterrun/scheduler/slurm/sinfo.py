"""sinfo: the partitions and the kinds of their nodes. Arguments of the command, and a parser of its output."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from clusterrun.scheduler.slurm.values import SEP, parse_count, parse_gpus

_SINFO_FIELDS = ("%P", "%a", "%l", "%L", "%D", "%c", "%m", "%G", "%T")
_UNUSABLE = ("down", "drain", "fail", "inval", "unk", "error", "future", "reboot")


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Identical nodes of a partition: their number, what each has, and Slurm's state.

    ``memory`` is in MB; ``gpus`` are (type, number) pairs per node, with an empty type if the site names none.
    """

    count: int
    cpus: int
    memory: int
    gpus: tuple[tuple[str, int], ...]
    state: str

    @property
    def gpu_count(self) -> int:
        return sum(n for _, n in self.gpus)

    @property
    def usable(self) -> bool:
        """Whether a job can start there; ``*`` marks a node that does not respond."""
        return not self.state.endswith("*") and not self.state.startswith(_UNUSABLE)


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """A partition; times as Slurm writes them (``infinite``, ``n/a`` without a default)."""

    name: str
    default: bool
    up: bool
    time_limit: str
    default_time: str
    nodes: tuple[NodeGroup, ...]

    @property
    def node_count(self) -> int:
        return sum(n.count for n in self.nodes)

    @property
    def gpu_total(self) -> int:
        return sum(n.count * n.gpu_count for n in self.nodes)

    @property
    def typical(self) -> NodeGroup | None:
        """The most frequent kind of node, of those with GPUs if there are any; of equals the larger."""
        counts: Counter[tuple[int, int, int, tuple[tuple[str, int], ...]]] = Counter()
        for n in self.nodes:
            if n.gpu_count or not self.gpu_total:
                counts[(n.gpu_count, n.cpus, n.memory, n.gpus)] += n.count
        best = max(counts, key=lambda kind: (counts[kind], kind), default=None)
        return NodeGroup(counts[best], best[1], best[2], best[3], "") if best else None


def sinfo_argv() -> list[str]:
    """Return the command for a line per partition, kind and state of nodes (``-e``: no rounding with ``+``)."""
    return ["sinfo", "-h", "-e", "-o", SEP.join(_SINFO_FIELDS)]


def parse_sinfo(text: str) -> tuple[PartitionSummary, ...]:
    """Parse the partitions, in Slurm's order."""
    heads: dict[str, tuple[bool, bool, str, str]] = {}
    kinds: dict[str, list[NodeGroup]] = {}
    for line in text.split("\n"):
        parts = [p.strip() for p in line.split(SEP)]
        if len(parts) != len(_SINFO_FIELDS) or not parts[0].rstrip("*"):
            continue
        name, avail, limit, default_time, count, cpus, memory, gres, state = parts
        plain = name.removesuffix("*")
        heads.setdefault(plain, (name != plain, avail == "up", limit, default_time))
        nodes = NodeGroup(parse_count(count), parse_count(cpus), parse_count(memory), parse_gpus(gres), state)
        kinds.setdefault(plain, []).extend([nodes] if nodes.count else [])
    return tuple(PartitionSummary(name, *head, tuple(kinds[name])) for name, head in heads.items())


class PartitionNode(NamedTuple):
    """A node as a member of a partition; ``is_default``: of the partition of jobs that name none."""

    name: str
    partition: str
    is_default: bool
    features: frozenset[str]
    usable: bool


def nodes_argv(partitions: str) -> list[str]:
    """Return the command for a line per node and partition, of these partitions or of all."""
    of_partitions = [f"--partition={partitions}"] if partitions else []
    return ["sinfo", "-h", "-a", "-N", *of_partitions, "-o", SEP.join(("%N", "%P", "%f", "%T"))]


def parse_nodes(text: str) -> list[PartitionNode]:
    """Parse the nodes of ``nodes_argv``."""
    nodes = []
    for line in text.split("\n"):
        parts = [part.strip() for part in line.split(SEP)]
        if len(parts) == 4 and parts[0]:
            name, partition, features, state = parts
            plain, usable = partition.removesuffix("*"), NodeGroup(1, 0, 0, (), state).usable
            nodes.append(PartitionNode(name, plain, plain != partition, frozenset(features.split(",")), usable))
    return nodes
