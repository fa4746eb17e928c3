"""What there is to run on: Slurm's partitions, limits and accounts, or this machine; and the profile made of it.

Each command is a pair of pure functions, argv out and text in; ``look`` runs them through an injected door and
takes any of them failing as an answer too. Parsers pass over lines they do not know: sites print banners.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from clusterrun.errors import CommandError
from clusterrun.shell import Completed

SEPARATOR = "\x1f"
_SINFO_FIELDS = ("%P", "%a", "%l", "%L", "%D", "%c", "%m", "%G", "%T")
_UNUSABLE = ("down", "drain", "fail", "inval", "unk", "error", "future", "reboot")
Run = Callable[[Sequence[str]], Completed]
Presence = Literal["yes", "silent", "none"]


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of a partition that are alike: how many, what each has, and their state as Slurm says it.

    ``memory`` is in MB; ``gpus`` are (type, number) pairs per node, the type empty where the site names none.
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
        """Whether a job could ever start there as things stand; ``*`` marks a node that does not respond."""
        return not self.state.endswith("*") and not self.state.startswith(_UNUSABLE)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition; times as Slurm writes them (``infinite``, ``n/a`` where there is no default)."""

    name: str
    default: bool
    up: bool
    time_limit: str
    default_time: str
    nodes: tuple[Nodes, ...]

    @property
    def node_count(self) -> int:
        return sum(n.count for n in self.nodes)

    @property
    def gpu_total(self) -> int:
        return sum(n.count * n.gpu_count for n in self.nodes)

    @property
    def typical(self) -> Nodes | None:
        """The kind of node there is most of, among those with GPUs where there are any; the larger one of equals."""
        counts: Counter[tuple[int, int, int, tuple[tuple[str, int], ...]]] = Counter()
        for n in self.nodes:
            if n.gpu_count or not self.gpu_total:
                counts[(n.gpu_count, n.cpus, n.memory, n.gpus)] += n.count
        best = max(counts, key=lambda kind: (counts[kind], kind), default=None)
        return Nodes(counts[best], best[1], best[2], best[3], "") if best else None


@dataclass(frozen=True, slots=True)
class Association:
    """An account the user may charge, and with it perhaps a partition and qualities of service."""

    account: str
    partition: str
    qos: tuple[str, ...]
    default_qos: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What was seen. ``slurm`` is ``silent`` where it is set up but did not answer; ``said`` holds its words then.

    ``accounting`` is ``yes``, ``silent`` or ``none`` likewise; ``message_timeout`` and ``min_job_age`` are seconds.
    """

    slurm: Presence
    said: str = ""
    cluster: str = ""
    partitions: tuple[Partition, ...] = ()
    accounting: Presence = "none"
    enforce: tuple[str, ...] = ()
    message_timeout: int | None = None
    min_job_age: int | None = None
    associations: tuple[Association, ...] = ()
    local_gpus: int = 0


def partitions_argv() -> list[str]:
    """Ask for every partition, a line for each kind and state of its nodes (``-e``: no rounding with ``+``)."""
    return ["sinfo", "-h", "-e", "-o", SEPARATOR.join(_SINFO_FIELDS)]


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """The partitions in Slurm's order."""
    heads: dict[str, tuple[bool, bool, str, str]] = {}
    kinds: dict[str, list[Nodes]] = {}
    for line in text.split("\n"):
        parts = [p.strip() for p in line.split(SEPARATOR)]
        if len(parts) != len(_SINFO_FIELDS) or not parts[0].rstrip("*"):
            continue
        name, avail, limit, default_time, count, cpus, memory, gres, state = parts
        plain = name.removesuffix("*")
        heads.setdefault(plain, (name != plain, avail == "up", limit, default_time))
        nodes = Nodes(_number(count), _number(cpus), _number(memory), parse_gpus(gres), state)
        kinds.setdefault(plain, []).extend([nodes] if nodes.count else [])
    return tuple(Partition(name, *head, tuple(kinds[name])) for name, head in heads.items())


def parse_gpus(gres: str) -> tuple[tuple[str, int], ...]:
    """The GPUs in a gres list: ``gpu:a100:4(S:0-1),nvme:1`` is one kind, ``(null)`` none.

    The form is ``name[:type][:no_consume][:number]`` (man slurm.conf 22.05, Gres).
    """
    found = []
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = item.strip().split(":")
        if name != "gpu":
            continue
        rest = [r for r in rest if r != "no_consume"]
        number = int(rest.pop()) if rest and re.fullmatch(r"[0-9]{1,9}", rest[-1]) else 1
        found.append((":".join(rest), number))
    return tuple(found)


def config_argv() -> list[str]:
    """Ask for the controller's configuration."""
    return ["scontrol", "show", "config"]


def parse_config(text: str) -> dict[str, str]:
    """The configuration's keys and values; ``(null)`` is an empty text."""
    pairs = (re.fullmatch(r"([A-Za-z]\w*(?:\[\d+\])?)\s+= ?(.*)", line.rstrip()) for line in text.split("\n"))
    return {m[1]: "" if m[2] == "(null)" else m[2] for m in pairs if m}


def accounting_argv() -> list[str]:
    """Ask accounting for nothing much, to see whether it answers."""
    return ["sacct", "-n", "-X", "-P", "--starttime", "now", "-o", "JobID"]


def parse_accounting(answer: Completed) -> Presence:
    """``none`` where accounting is switched off, ``silent`` where it is on but did not answer."""
    if answer.status == 0:
        return "yes"
    return "none" if "accounting storage is disabled" in (answer.stderr + answer.stdout).lower() else "silent"


def associations_argv(user: str, cluster: str) -> list[str]:
    """Ask which accounts a user may charge on this cluster (a database may serve several)."""
    where = [f"user={user}", *([f"cluster={cluster}"] if cluster else [])]
    return ["sacctmgr", "-nP", "show", "assoc", *where, "format=account,partition,qos,defaultqos"]


def parse_associations(text: str) -> tuple[Association, ...]:
    """The user's associations in Slurm's order."""
    rows = (line.split("|") for line in text.split("\n"))
    return tuple(
        Association(r[0], r[1], tuple(q for q in r[2].split(",") if q), r[3]) for r in rows if len(r) == 4 and r[0]
    )


def gpus_argv() -> list[str]:
    """Ask this machine for its GPUs."""
    return ["nvidia-smi", "-L"]


def parse_local_gpus(text: str) -> int:
    """The number of GPUs of this machine; slices of one (MIG) do not count."""
    return len(re.findall(r"^GPU [0-9]+:", text, re.MULTILINE))


def look(run: Run, user: str) -> ClusterFacts:
    """Look at the cluster, or at this machine where there is none; a command that fails leaves its facts empty."""
    seen = _try(run, partitions_argv())
    if seen.status != 0:
        said = _first_line(seen.stderr or seen.stdout)
        absent = seen.status == _NOT_STARTED or "configuration source" in seen.stderr
        gpus = _try(run, gpus_argv())
        count = parse_local_gpus(gpus.stdout) if gpus.status == 0 else 0
        return ClusterFacts(slurm="none" if absent else "silent", said=said, local_gpus=count)
    config = parse_config(_try(run, config_argv()).stdout)
    cluster = config.get("ClusterName", "")
    storage = config.get("AccountingStorageType")
    off = storage is not None and not storage.removeprefix("accounting_storage/").replace("none", "")
    accounting: Presence = "none" if off else parse_accounting(_try(run, accounting_argv()))
    mine = _try(run, associations_argv(user, cluster)) if accounting == "yes" else Completed(1, "", "")
    return ClusterFacts(
        slurm="yes",
        cluster=cluster,
        partitions=parse_partitions(seen.stdout),
        accounting=accounting,
        enforce=tuple(
            w for w in re.split(r"[,\s]+", config.get("AccountingStorageEnforce", "")) if w not in ("", "none")
        ),
        message_timeout=_seconds(config.get("MessageTimeout", "")),
        min_job_age=_seconds(config.get("MinJobAge", "")),
        associations=parse_associations(mine.stdout) if mine.status == 0 else (),
    )


_NOT_STARTED = -1


def _try(run: Run, argv: Sequence[str]) -> Completed:
    try:
        return run(argv)
    except CommandError as error:
        status = 1 if error.timed_out else _NOT_STARTED if error.status is None else error.status
        return Completed(status, error.stdout, error.stderr or error.message)


def _number(text: str) -> int:
    match = re.match(r"[0-9]{1,12}", text)
    return int(match[0]) if match else 0


def _seconds(text: str) -> int | None:
    match = re.match(r"[0-9]{1,9}", text)
    return int(match[0]) if match else None


def _first_line(text: str) -> str:
    return next((line.strip() for line in _lines_backwards(text)), "")


def _lines_backwards(text: str) -> Iterable[str]:
    """The last line first: Slurm's own reason stands below the steps that led to it."""
    return (line for line in reversed(text.split("\n")) if line.strip())
