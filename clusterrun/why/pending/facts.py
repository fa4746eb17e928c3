"""The facts on a pending job and its cluster, as Slurm reported them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clusterrun.base.job import JobStatus
from clusterrun.scheduler.slurm.limits import LimitScope
from clusterrun.scheduler.slurm.nodes import Node
from clusterrun.scheduler.slurm.reasons import Reason, Starts
from clusterrun.scheduler.slurm.sacctmgr import Association
from clusterrun.scheduler.slurm.sprio import Priority
from clusterrun.scheduler.slurm.squeue import Queued, parse_tres


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
    features: Mapping[str, frozenset[str]] | None = None
    reservations: Sequence[dict[str, str]] | None = None
    licenses: Sequence[dict[str, str]] | None = None
    holders: Sequence[LimitScope] | None = None
    past: Sequence[JobStatus] | None = None
    associations: Sequence[Association] | None = None
    priorities: Sequence[Priority] | None = None
    unseen: tuple[str, ...] = ()

    @property
    def partition_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.job.get("Partition", "").split(",") if name)

    @property
    def partition_text(self) -> str:
        """Return ``partition gpu``, ``partitions gpu, low``."""
        return f"partition{'s' * (len(self.partition_names) > 1)} {', '.join(self.partition_names)}"

    @property
    def own_partitions(self) -> list[dict[str, str]]:
        """Return the partitions that the job may run in."""
        return [p for p in self.partitions or () if p.get("PartitionName") in self.partition_names]

    @property
    def own_qos(self) -> list[str]:
        """Return the QOS that apply to the job: its own and its partitions'."""
        names = [self.job.get("QOS", ""), *(p.get("QoS", "") for p in self.own_partitions)]
        return [name for name in dict.fromkeys(names) if name]

    @property
    def own_accounts(self) -> list[str]:
        """Return the job's account and its known parents."""
        parents = {row.account: row.parent for row in self.holders or () if row.kind == "association" and not row.user}
        chain = [self.job.get("Account", "")]
        while (parent := parents.get(chain[-1], "")) and parent not in chain:
            chain.append(parent)
        return chain

    @property
    def requested(self) -> dict[str, float]:
        """Return the requested amounts by resource; memory in MB."""
        return dict(parse_tres(self.job.get("ReqTRES") or self.job.get("TRES", "")))

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
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", self.job.get("NumNodes", ""), re.ASCII)
        return (int(match[1]), int(match[2] or match[1])) if match else (0, 0)

    def epoch(self, key: str) -> int | None:
        """Return one of the job's times in seconds since the epoch."""
        text = self.job.get(key, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None


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
