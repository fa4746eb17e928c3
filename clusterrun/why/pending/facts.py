"""The facts on a pending job and its cluster, as Slurm reported them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from clusterrun.base.job import JobStatus
from clusterrun.scheduler.slurm.hostlist import expand
from clusterrun.scheduler.slurm.limits import LimitScope
from clusterrun.scheduler.slurm.nodes import Node
from clusterrun.scheduler.slurm.reasons import Limit, Reason, Starts
from clusterrun.scheduler.slurm.sacctmgr import Association
from clusterrun.scheduler.slurm.sprio import Priority
from clusterrun.scheduler.slurm.squeue import Queued, parse_tres
from clusterrun.scheduler.slurm.values import parse_duration, parse_int


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFacts:
    """What Slurm reported on a pending job and its cluster; None was not queried or not answered.

    ``job`` and ``partitions`` have Slurm's own keys. ``unseen`` names what was not available, one line each.
    """

    id: str
    reason: Reason | None
    now: float
    job: dict[str, str] = field(default_factory=dict)
    queue: Sequence[Queued] | None = None
    partitions: Sequence[dict[str, str]] | None = None
    nodes: Sequence[Node] | None = None
    features: Mapping[str, frozenset[str]] = field(default_factory=dict)
    reservations: Sequence[dict[str, str]] | None = None
    licenses: Sequence[dict[str, str]] | None = None
    scopes: Sequence[LimitScope] | None = None
    past: Sequence[JobStatus] | None = None
    associations: Sequence[Association] | None = None
    priorities: Sequence[Priority] | None = None
    unseen: tuple[str, ...] = ()

    @property
    def limit(self) -> Limit | None:
        return self.reason.limit if self.reason else None

    @property
    def word(self) -> str:
        """Return the reason's word; empty if the job has no reason, or one that clusterrun does not know."""
        return self.reason.word if self.reason else ""

    @property
    def rows(self) -> Sequence[Queued]:
        """Return the jobs of the queue, as far as they are visible."""
        return self.queue or ()

    @property
    def own_row(self) -> Queued | None:
        """Return the job's own row of the queue."""
        for row in self.rows:
            if str(row.raw) == self.job.get("JobId"):
                return row
        return None

    @property
    def partition_names(self) -> tuple[str, ...]:
        return tuple(filter(None, self.job.get("Partition", "").split(",")))

    @property
    def partition_text(self) -> str:
        """Return ``partition gpu``, ``partitions gpu, low``."""
        return f"partition{'s' * (len(self.partition_names) > 1)} {', '.join(self.partition_names)}"

    @property
    def own_partitions(self) -> list[dict[str, str]]:
        """Return the partitions that the job may run in."""
        return [p for p in self.partitions or () if p.get("PartitionName") in self.partition_names]

    def is_in_one_of(self, partitions: Iterable[str]) -> bool:
        """Return whether the job may run in one of these partitions."""
        return not set(self.partition_names).isdisjoint(partitions)

    @property
    def account(self) -> str:
        return self.job.get("Account", "")

    @property
    def features_wanted(self) -> str:
        return self.job.get("Features", "")

    def nodes_in(self, key: str) -> list[str]:
        """Return the nodes of one of the job's host lists."""
        return expand(self.job.get(key, ""))

    @property
    def own_accounts(self) -> list[str]:
        """Return the job's account and its known parents."""
        associations = [scope for scope in self.own_scopes if scope.kind == "association"]
        parents = {scope.account: scope.parent for scope in associations if not scope.user}
        chain, parent = [""], self.account
        while parent not in chain:
            chain.append(parent)
            parent = parents.get(parent, "")
        return chain[1:]

    @property
    def partition_qos(self) -> list[str]:
        return [p.get("QoS", "") for p in self.own_partitions]

    @property
    def own_qos(self) -> list[str]:
        """Return the QOS that apply to the job: its own and its partitions'."""
        return [self.job.get("QOS", ""), *self.partition_qos]

    @property
    def own_scopes(self) -> list[LimitScope]:
        """Return what sets limits in all partitions or the job's, on all users or the job's."""
        users, partitions = ("", self.user, self.uid), ("", *self.partition_names)
        return [scope for scope in self.scopes or () if scope.user in users and scope.partition in partitions]

    @property
    def requested(self) -> dict[str, float]:
        """Return the requested amounts by resource; memory in MB."""
        return dict(parse_tres(self.job.get("ReqTRES") or self.job.get("TRES", "")))

    @property
    def time_limit(self) -> int | None:
        """Return the requested time limit in seconds; None without one."""
        return parse_duration(self.job.get("TimeLimit", ""))

    @property
    def user(self) -> str:
        return self.job.get("UserId", "").partition("(")[0]

    @property
    def uid(self) -> str:
        """Return the user's numeric id as text."""
        return self.job.get("UserId", "").partition("(")[2].rstrip(")")

    @property
    def requested_nodes(self) -> tuple[int, int]:
        """Return the minimum and maximum number of nodes, (0, 0) if unknown."""
        low, _, high = self.job.get("NumNodes", "").partition("-")
        least = parse_int(low) or 0
        return least, parse_int(high) or least

    @property
    def least_nodes(self) -> int:
        """Return the minimum number of nodes, 1 if unknown."""
        return max(1, self.requested_nodes[0])

    def update(self, key: str, value: object = "") -> str:
        """Return the command that changes the job's request."""
        return f"scontrol update JobId={self.id} {key}={value}"

    def change_nodes(self, count: int) -> str:
        """Return how to change the number of nodes; Slurm keeps the tasks, and holds a job whose tasks do not fit."""
        if number_in(self.job, "NumTasks") > self.least_nodes:
            return f"run `clusterrun cancel {self.id}`, then submit the job again with --nodes {count}"
        # a single number sets only the minimum, so that the reason stays (seen on 22.05)
        return self.update("NumNodes", f"{count}-{count}")

    def epoch(self, key: str) -> int | None:
        """Return one of the job's times in seconds since the epoch."""
        at = number_in(self.job, key)
        return at if 0 < at <= 99_999_999_999 else None


def number_in(block: Mapping[str, str], key: str) -> int:
    """Return a number of a job, partition or reservation; 0 if there is none, as of a floating reservation's start."""
    return parse_int(block.get(key, "")) or 0


@dataclass(frozen=True, slots=True)
class Finding:
    """Evidence on one job: ``here`` are sentences, ``do`` commands or advice, ``unseen`` what was not available.

    ``starts`` is set if it differs from that of the reason.
    """

    here: tuple[str, ...] = ()
    do: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    starts: Starts | None = None

    def __add__(self, other: Finding) -> Finding:
        return Finding(
            self.here + other.here, self.do + other.do, self.unseen + other.unseen, self.starts or other.starts
        )
