"""Nodes and partitions from ``scontrol show``. Arguments of the commands, and parsers of their output.

The blocks are parsed by :mod:`clusterrun.scheduler.slurm.scontrol`. An unknown state raises no error, stays as it is
and never counts as free.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterrun.scheduler.slurm.scontrol import parse_show, show_argv
from clusterrun.scheduler.slurm.values import parse_duration, parse_gpus, parse_int

Gpus = tuple[tuple[str, int], ...]
"""(type, number) pairs; the type is empty if the site names none."""

#: sinfo's marks after a state (man sinfo, NODE STATE CODES); ``scontrol`` of 22.05 writes ``*`` too.
_MARKS = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWER_DOWN", "%": "POWERING_DOWN",
          "$": "MAINTENANCE", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED"}  # fmt: skip
_BASES = ("ALLOCATED", "MIXED", "IDLE")
#: A node's condition by its flags, the most severe first (names: src/common/slurm_protocol_defs.c, node_state_flags).
_STANDINGS: tuple[tuple[str, str], ...] = (
    ("DOWN", "down"), ("ERROR", "error"), ("FUTURE", "future"), ("UNKNOWN", "unknown"), ("FAIL", "failing"),
    ("INVALID_REG", "invalid registration"), ("NOT_RESPONDING", "not responding"), ("DRAIN", "drained"),
    ("DRAINED", "drained"), ("DRAINING", "draining"), ("MAINTENANCE", "reserved"), ("MAINT", "reserved"),
    ("RESERVED", "reserved"), ("BLOCKED", "blocked"), ("REBOOT_REQUESTED", "rebooting"),
    ("REBOOT_ISSUED", "rebooting"), ("POWERED_DOWN", "powered down"), ("POWERING_DOWN", "powered down"),
    ("POWER_DOWN", "powered down"), ("POWERING_UP", "powered down"), ("POWER_UP", "powered down"),
)  # fmt: skip
OPEN = ("idle", "mixed", "planned")
"""The conditions in which a node takes a job now."""
OUT = ("down", "error", "unknown", "failing", "invalid registration", "not responding", "drained", "draining")
"""The conditions that an administrator has to fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node; memory in MB, ``gpus_used`` None if unknown.

    ``state`` is Slurm's own (``IDLE+DRAIN``); ``reason`` is why it is down, by whom and since which epoch second.
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
        """The node's condition: ``idle``, ``mixed``, ``drained`` …; Slurm's own state if it is unknown."""
        words = state_words(self.state)
        return _standing_by_flag(words) or _standing_by_use(words) or self.state.lower()

    @property
    def gpu_total(self) -> int:
        return sum(number for _, number in self.gpus)

    @property
    def cpus_free(self) -> int:
        """CPUs that a job could use now."""
        return max(0, self.cpus - self.cpus_used) if self.standing in OPEN else 0

    @property
    def full(self) -> str:
        """What is used up, so that no job fits even if GPUs are idle: ``CPUs``, ``memory``, or empty."""
        if self.cpus and self.cpus_used >= self.cpus:
            return "CPUs"
        return "memory" if self.memory and self.memory_used >= self.memory else ""

    @property
    def gpus_idle(self) -> Gpus:
        """GPUs that no job uses, by type, in any state of the node; empty if unknown."""
        if self.gpus_used is None:
            return ()
        left = dict(self.gpus)
        for kind, used in self.gpus_used:
            # a type that the node does not name is subtracted from the types it has, the largest first
            for name in [kind] if kind in left else sorted(left, key=lambda k: -left[k]):
                taken = min(left[name], used)
                left[name] -= taken
                used -= taken  # noqa: PLW2901
        return tuple(left.items())

    @property
    def gpus_free(self) -> Gpus:
        """GPUs that a job could use now, by type."""
        return self.gpus_idle if self.standing in OPEN and not self.full else ()

    @property
    def gpu_free(self) -> int:
        return sum(number for _, number in self.gpus_free)


def _standing_by_flag(words: frozenset[str]) -> str:
    """Return a node's condition by the most severe of its flags; empty without one."""
    is_busy = _is_busy(words)
    for flag, standing in _STANDINGS:
        is_being_started = standing == "powered down" and is_busy
        if flag not in words or is_being_started:
            continue
        if standing == "drained" and (is_busy or "COMPLETING" in words):
            return "draining"
        return standing
    return ""


def _standing_by_use(words: frozenset[str]) -> str:
    """Return the condition of a node without flags, by its use; empty if Slurm's word for it is unknown."""
    base = next((base for base in _BASES if base in words), "")
    if base and "COMPLETING" in words and not _is_busy(words):
        return "completing"
    if base not in ("", "ALLOCATED") and "PLANNED" in words:
        return "planned"
    return base.lower()


def _is_busy(words: frozenset[str]) -> bool:
    return "ALLOCATED" in words or "MIXED" in words


_LINES = ("NodeName=", "CPUAlloc=", "Gres=", "GresUsed=", "RealMemory=", "State=", "Partitions=", "CfgTRES=",
          "AllocTRES=", "Reason=")  # fmt: skip


def nodes_argv() -> list[str]:
    """Return the command for all nodes; ``--details`` adds the used generic resources, also without accounting."""
    argv = show_argv("node")
    return [argv[0], "--details", *argv[1:]]


def parse_nodes(text: str) -> list[Node]:
    """Parse the nodes, in Slurm's order."""
    # thousands of nodes have twenty lines each, of which half are not needed
    lines = (line for line in text.split("\n") if line.lstrip().startswith(_LINES) or not line.strip())
    return [_node(block) for block in parse_show("\n".join(lines)) if block.get("NodeName")]


def _node(block: dict[str, str]) -> Node:
    reason, by, at = parse_reason(block.get("Reason", ""))
    gpus = parse_gpus(block.get("Gres", "")) or tres_gpus(block.get("CfgTRES", ""))
    return Node(
        name=block["NodeName"],
        partitions=tuple(p for p in block.get("Partitions", "").split(",") if p),
        state=block.get("State", ""),
        cpus=parse_int(block.get("CPUEfctv") or block.get("CPUTot", "")) or 0,
        cpus_used=parse_int(block.get("CPUAlloc", "")) or 0,
        memory=parse_int(block.get("RealMemory", "")) or 0,
        memory_used=parse_int(block.get("AllocMem", "")) or 0,
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
    """Parse a node's state into its flags: ``MIXED+DRAIN`` has two, ``DOWN*`` includes NOT_RESPONDING."""
    flags = set()
    for part in state.upper().split("+"):
        plain = part.rstrip("".join(_MARKS))
        flags |= {plain, *(_MARKS[mark] for mark in part[len(plain) :])}
    return frozenset(flags - {""})


def tres_gpus(tres: str) -> Gpus:
    """Parse the GPUs in a TRES list: ``cpu=8,gres/gpu=4,gres/gpu:a100=4`` is four a100; types replace the sum."""
    found = re.findall(r"(?:^|,)gres/gpu(?::([^=,]+))?=([0-9]{1,9})", tres, re.ASCII)
    typed = [(kind, int(number)) for kind, number in found if kind]
    return _sum(typed or [("", int(number)) for _, number in found])


def parse_reason(text: str) -> tuple[str, str, int | None]:
    """Parse a node's reason, its author and its time: ``bad fan [root@1763700000]``."""
    match = re.fullmatch(r"(.*?) ?\[([^\[\]@]*)@([^\[\]@]*)\]", text, re.DOTALL)
    if match is None:
        return text, "", None
    return match[1], match[2], parse_int(match[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition; ``time_limit`` (seconds) and ``max_nodes`` are None without a limit.

    ``given_time`` is the time limit in seconds of a job that requests none. ``allowed`` and ``denied`` map Slurm's keys
    (``Accounts``, ``Qos``, ``Groups``) to names.
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
    """A user, with groups, and the accounts and QOS in accounting, None if unknown.

    ``above`` are the parent accounts: newer versions let a partition allow a whole tree of them.
    """

    user: str
    groups: frozenset[str] = frozenset()
    accounts: frozenset[str] | None = None
    qos: frozenset[str] | None = None
    above: frozenset[str] = frozenset()

    def of(self, what: str) -> frozenset[str] | None:
        return {"Accounts": self.accounts, "Qos": self.qos, "Groups": self.groups}.get(what)


def parse_partitions(text: str) -> list[Partition]:
    """Parse the partitions, in Slurm's order."""
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
        # without a DefaultTime (NONE) it is the partition's maximum
        given_time=parse_duration(block.get("DefaultTime", "")) or parse_duration(block.get("MaxTime", "")),
        min_nodes=parse_int(block.get("MinNodes", "")) or 0,
        max_nodes=parse_int(block.get("MaxNodes", "")),
        qos=block.get("QoS", ""),
        root_only=block.get("RootOnly") == "YES",
        needs_reservation=block.get("ReqResv") == "YES",
        allowed=names("Allow"),
        denied=names("Deny"),
    )


def closed(partition: Partition, me: UserContext) -> str:
    """Return the partition's setting that refuses this user's jobs; empty if there is none."""
    if partition.state != "UP":
        return f"State={partition.state}"
    if partition.root_only and me.user != "root":
        return "RootOnly=YES"
    for what, names in partition.allowed:
        if not _is_allowed(me, what, names):
            return f"Allow{what}={','.join(names)}"
    for what, names in partition.denied:
        own = me.of(what)
        if own and own <= set(names):
            return f"Deny{what}={','.join(names)}"
    return ""


def _is_allowed(me: UserContext, what: str, names: Sequence[str]) -> bool:
    """Return whether a partition that allows these accounts, QOS or groups takes a user's jobs; yes if unknown."""
    if what == "Groups" and me.user == "root":  # as in src/slurmctld/partition_mgr.c
        return True
    own = me.of(what)
    if own is None:
        return True
    if what == "Accounts":
        own |= me.above
    return not own.isdisjoint(names)


def _sum(pairs: Iterable[tuple[str, int]]) -> Gpus:
    """Return one pair per type; a node may have one type on several lines of gres.conf."""
    sums: dict[str, int] = {}
    for kind, number in pairs:
        sums[kind] = sums.get(kind, 0) + number
    return tuple(sums.items())
