"""What Slurm tells of its nodes and partitions, as pairs of pure functions: argv out, text in.

The blocks of ``scontrol show`` are read by :mod:`clusterrun.scheduler.slurm.scontrol`. Nothing here raises on a
word that it does not know: an unknown state is kept as it is and never counts as free.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from clusterrun.scheduler.slurm.scontrol import parse_show, show_argv
from clusterrun.scheduler.slurm.sinfo import parse_gpus
from clusterrun.scheduler.slurm.values import parse_duration

Gpus = tuple[tuple[str, int], ...]
"""(type, number) pairs; the type is empty where the site names none."""

#: sinfo's marks behind a state (man sinfo, NODE STATE CODES); ``scontrol`` of 22.05 writes ``*`` too.
_MARKS = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWER_DOWN", "%": "POWERING_DOWN",
          "$": "MAINTENANCE", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED"}  # fmt: skip
_BASES = {"IDLE", "MIXED", "ALLOCATED"}
#: What a flag makes of a node, the weightiest first (names: src/common/slurm_protocol_defs.c, node_state_flags).
_STANDINGS: tuple[tuple[str, str], ...] = (
    ("DOWN", "down"), ("ERROR", "error"), ("FUTURE", "future"), ("UNKNOWN", "unknown"), ("FAIL", "failing"),
    ("INVALID_REG", "invalid registration"), ("NOT_RESPONDING", "not responding"), ("DRAIN", "drained"),
    ("DRAINED", "drained"), ("DRAINING", "draining"), ("MAINTENANCE", "reserved"), ("MAINT", "reserved"),
    ("RESERVED", "reserved"), ("BLOCKED", "blocked"), ("REBOOT_REQUESTED", "rebooting"),
    ("REBOOT_ISSUED", "rebooting"), ("POWERED_DOWN", "powered down"), ("POWERING_DOWN", "powered down"),
    ("POWER_DOWN", "powered down"), ("POWERING_UP", "powered down"), ("POWER_UP", "powered down"),
)  # fmt: skip
OPEN = ("idle", "mixed", "planned")
"""The standings in which a node takes a job now."""
OUT = ("down", "error", "unknown", "failing", "invalid registration", "not responding", "drained", "draining")
"""The standings that somebody has to mend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as Slurm has it: memory in MB; ``gpus_used`` is None where Slurm did not say.

    ``state`` is Slurm's own (``IDLE+DRAIN``); ``reason`` is why it is out, by whom and since which epoch second.
    """

    name: str
    partitions: tuple[str, ...] = ()
    state: str = ""
    cpus: int = 0
    cpus_used: int = 0
    memory: int = 0
    memory_used: int = 0
    gpus: Gpus = ()
    gpus_used: Gpus | None = ()
    reason: str = ""
    reason_by: str = ""
    reason_at: int | None = None

    @property
    def standing(self) -> str:
        """One word for what the node is good for: ``idle``, ``mixed``, ``drained`` …; Slurm's own where it is new."""
        words = state_words(self.state)
        busy = bool(words & {"ALLOCATED", "MIXED"})
        for flag, standing in _STANDINGS:
            if flag in words:
                if standing == "drained" and (busy or "COMPLETING" in words):
                    return "draining"
                if standing == "powered down" and busy:
                    continue  # it is being started for a job
                return standing
        if not words & _BASES:
            return self.state.lower()
        if "COMPLETING" in words and not busy:
            return "completing"
        if "PLANNED" in words and "ALLOCATED" not in words:
            return "planned"
        return next(base.lower() for base in ("ALLOCATED", "MIXED", "IDLE") if base in words)

    @property
    def gpu_total(self) -> int:
        return sum(number for _, number in self.gpus)

    @property
    def cpus_free(self) -> int:
        """CPUs that a job could have now."""
        return max(0, self.cpus - self.cpus_used) if self.standing in OPEN else 0

    @property
    def full(self) -> str:
        """What is used up so that a job finds no place though GPUs may be idle: ``CPUs``, ``memory``, or nothing."""
        if self.cpus and self.cpus_used >= self.cpus:
            return "CPUs"
        return "memory" if self.memory and self.memory_used >= self.memory else ""

    @property
    def gpus_idle(self) -> Gpus:
        """GPUs that no job has, by type, whatever the node's state; empty where Slurm did not say what is used."""
        if self.gpus_used is None:
            return ()
        left = dict(self.gpus)
        for kind, used in self.gpus_used:
            # a type that the node does not name is taken off the types it has, largest first
            for name in [kind] if kind in left else sorted(left, key=lambda k: -left[k]):
                taken = min(left[name], used)
                left[name] -= taken
                used -= taken  # noqa: PLW2901
        return tuple(left.items())

    @property
    def gpus_free(self) -> Gpus:
        """GPUs that a job could have now, by type."""
        return self.gpus_idle if self.standing in OPEN and not self.full else ()

    @property
    def gpu_free(self) -> int:
        return sum(number for _, number in self.gpus_free)


_LINES = ("NodeName=", "CPUAlloc=", "Gres=", "GresUsed=", "RealMemory=", "State=", "Partitions=", "CfgTRES=",
          "AllocTRES=", "Reason=")  # fmt: skip


def nodes_argv() -> list[str]:
    """Ask for all nodes; ``-d`` adds which generic resources are in use, whether or not there is accounting."""
    argv = show_argv("node")
    return [argv[0], "--details", *argv[1:]]


def parse_nodes(text: str) -> list[Node]:
    """The nodes of the answer, in Slurm's order."""
    # thousands of nodes, twenty lines each, half of them of no use here
    lines = (line for line in text.split("\n") if line.lstrip().startswith(_LINES) or not line.strip())
    return [_node(block) for block in parse_show("\n".join(lines)) if block.get("NodeName")]


def _node(block: dict[str, str]) -> Node:
    reason, by, at = parse_reason(block.get("Reason", ""))
    gpus = parse_gpus(block.get("Gres", "")) or tres_gpus(block.get("CfgTRES", ""))
    return Node(
        name=block["NodeName"],
        partitions=tuple(p for p in block.get("Partitions", "").split(",") if p),
        state=block.get("State", ""),
        cpus=_number(block.get("CPUEfctv") or block.get("CPUTot")) or 0,
        cpus_used=_number(block.get("CPUAlloc")) or 0,
        memory=_number(block.get("RealMemory")) or 0,
        memory_used=_number(block.get("AllocMem")) or 0,
        gpus=_sum(gpus),
        gpus_used=_used(block, bool(gpus)),
        reason=reason,
        reason_by=by,
        reason_at=at,
    )


def _used(block: dict[str, str], any_gpus: bool) -> Gpus | None:
    if not any_gpus:
        return ()
    if "GresUsed" in block:
        return _sum(parse_gpus(block["GresUsed"]))
    if "gres/gpu" in block.get("CfgTRES", ""):
        return tres_gpus(block.get("AllocTRES", ""))
    return () if state_words(block.get("State", "")) & {"IDLE", "DOWN"} else None


def state_words(state: str) -> frozenset[str]:
    """The words of a node's state: ``MIXED+DRAIN`` is two, ``DOWN*`` says NOT_RESPONDING as well."""
    words = set()
    for part in state.upper().split("+"):
        plain = part.rstrip("".join(_MARKS))
        words |= {plain, *(_MARKS[mark] for mark in part[len(plain) :])}
    return frozenset(words - {""})


def tres_gpus(tres: str) -> Gpus:
    """The GPUs in a TRES list: ``cpu=8,gres/gpu=4,gres/gpu:a100=4`` is four a100; types win over the sum."""
    found = re.findall(r"(?:^|,)gres/gpu(?::([^=,]+))?=([0-9]{1,9})", tres, re.ASCII)
    typed = [(kind, int(number)) for kind, number in found if kind]
    return _sum(typed or [("", int(number)) for _, number in found])


def parse_reason(text: str) -> tuple[str, str, int | None]:
    """A node's reason, who wrote it and when: ``bad fan [root@1763700000]``."""
    match = re.fullmatch(r"(.*?) ?\[([^\[\]@]*)@([^\[\]@]*)\]", text, re.DOTALL)
    if match is None:
        return text, "", None
    return match[1], match[2], _number(match[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition; ``time_limit`` in seconds, ``max_nodes`` and it None where there is no limit.

    ``given_time`` is the limit in seconds of a job that asks for none.

    ``allowed`` and ``denied`` map Slurm's own words (``Accounts``, ``Qos``, ``Groups``) to names.
    """

    name: str
    default: bool = False
    state: str = "UP"
    time_limit: int | None = None
    given_time: int | None = None
    min_nodes: int = 0
    max_nodes: int | None = None
    qos: str = ""
    root_only: bool = False
    needs_reservation: bool = False
    allowed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    denied: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class UserContext:
    """Who asks: user, groups, and the accounts and QOS that accounting gives them, None where it did not say.

    ``above`` are the accounts that theirs belong to: newer versions let a partition allow a whole tree of them.
    """

    user: str
    groups: frozenset[str] = frozenset()
    accounts: frozenset[str] | None = None
    qos: frozenset[str] | None = None
    above: frozenset[str] = frozenset()

    def of(self, what: str) -> frozenset[str] | None:
        return {"Accounts": self.accounts, "Qos": self.qos, "Groups": self.groups}.get(what)


def partitions_argv() -> list[str]:
    """Ask for all partitions that may be seen."""
    return show_argv("partition")


def parse_partitions(text: str) -> list[Partition]:
    """The partitions of the answer, in Slurm's order."""
    return [_partition(block) for block in parse_show(text) if block.get("PartitionName")]


def _partition(block: dict[str, str]) -> Partition:
    def names(rule: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        found = ((what, block.get(rule + what, "")) for what in ("Accounts", "Qos", "Groups"))
        return tuple((what, tuple(n for n in text.split(",") if n)) for what, text in found if text not in ("", "ALL"))

    return Partition(
        name=block["PartitionName"],
        default=block.get("Default") == "YES",
        state=block.get("State", "UP"),
        time_limit=parse_duration(block.get("MaxTime", "")),
        # without a DefaultTime (NONE) it is the longest that the partition allows
        given_time=parse_duration(block.get("DefaultTime", "")) or parse_duration(block.get("MaxTime", "")),
        min_nodes=_number(block.get("MinNodes")) or 0,
        max_nodes=_number(block.get("MaxNodes")),
        qos=block.get("QoS", ""),
        root_only=block.get("RootOnly") == "YES",
        needs_reservation=block.get("ReqResv") == "YES",
        allowed=names("Allow"),
        denied=names("Deny"),
    )


def closed(partition: Partition, me: UserContext) -> str:
    """Why jobs of this user are not taken there, in the partition's own words; empty where nothing says so."""
    if partition.state != "UP":
        return f"State={partition.state}"
    root = me.user == "root"  # Slurm lets root pass RootOnly and AllowGroups (src/slurmctld/partition_mgr.c)
    if partition.root_only and not root:
        return "RootOnly=YES"
    for what, names in partition.allowed:
        mine = me.of(what)
        if what == "Accounts" and mine is not None:
            mine |= me.above
        if mine is not None and not mine & set(names) and not (what == "Groups" and root):
            return f"Allow{what}={','.join(names)}"
    for what, names in partition.denied:
        mine = me.of(what)
        if mine and mine <= set(names):
            return f"Deny{what}={','.join(names)}"
    return ""


def _sum(pairs: Iterable[tuple[str, int]]) -> Gpus:
    """A node may name one type on several lines of gres.conf: one pair for each type."""
    sums: dict[str, int] = {}
    for kind, number in pairs:
        sums[kind] = sums.get(kind, 0) + number
    return tuple(sums.items())


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None
