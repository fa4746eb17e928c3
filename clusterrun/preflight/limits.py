"""Judge a job by Slurm's answers about the cluster: what can never start, and what is doubtful. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain

from clusterrun.base.errors import RequestError, nearest
from clusterrun.base.units import format_duration, format_time, format_time_limit, plural
from clusterrun.free.account_limits import exceeded_limits
from clusterrun.free.shapes import exceeds_time_limit, node_capacity, shape_of, why_never
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.jobspec.fields import sbatch_option
from clusterrun.jobspec.spec import JobSpec
from clusterrun.preflight.findings import Finding
from clusterrun.scheduler.slurm.hostlist import expand
from clusterrun.scheduler.slurm.nodes import OPEN, Node, Partition, UserContext
from clusterrun.scheduler.slurm.sbatch import SBATCH_ERRORS, No, find_error
from clusterrun.scheduler.slurm.values import parse_count

#: sbatch's own options that change what is judged here.
_OVERRIDES = {"partition", "p", "qos", "q", "account", "A", "time", "t", "time-min", "gres", "overcommit", "O"}
#: Conditions in which a node takes jobs, now or when it is started.
_IN_SERVICE = (*OPEN, "allocated", "completing", "powered down")
_UNKNOWN = ClusterSnapshot(nodes=(), partitions=(), me=UserContext(""))
_MEGABYTES = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}
#: Seconds for which a job waits at least before a reservation that it is to end before.
_MARGIN = 300


def judge_shell(cluster: ClusterSnapshot, spec: JobSpec, seconds: int) -> list[Finding]:
    """Warn of a shell whose limit on processor time the job would get; ``seconds`` is -1 without a limit."""
    if seconds < 0 or not cluster.passes_cpu_limit or _has_option(spec, {"propagate"}):
        return []
    limit = f"this shell limits each process to {seconds:,} s of processor time (ulimit -t)"
    return [f"{limit}, and Slurm gives the job the same limit: to avoid it, add --sbatch-arg=--propagate=NONE"]


def _has_option(spec: JobSpec, options: set[str]) -> bool:
    """Return whether the user's sbatch arguments set one of these options."""
    return not options.isdisjoint(map(sbatch_option, spec.sbatch_args))


def _partitions(cluster: ClusterSnapshot, spec: JobSpec) -> list[Partition]:
    """Return the job's partitions, or the default one; hidden partitions are unknown."""
    requested = spec.directive("partition")
    if not requested:
        return [partition for partition in cluster.partitions if partition.default]
    names = requested.split(",")
    return [partition for partition in cluster.partitions if partition.name in names]


def _nodes(cluster: ClusterSnapshot, spec: JobSpec) -> dict[str, Node]:
    """Return the nodes of the job's partitions by name."""
    nodes = chain.from_iterable(cluster.nodes_of(partition.name) for partition in _partitions(cluster, spec))
    return {node.name: node for node in nodes}


def time_of(cluster: ClusterSnapshot, spec: JobSpec) -> int | None:
    """Return the job's time limit in seconds, the partition's default if it requests none; None without a limit."""
    if "time" in spec.sources:
        return spec.time_limit
    defaults = [partition.given_time or 0 for partition in _partitions(cluster, spec)]
    return max(defaults, default=0) or None


def judge_limits(cluster: ClusterSnapshot, spec: JobSpec) -> list[Finding]:
    """Return the limits of partitions, accounts and QOS in the job's way.

    Slurm may accept such a job, which then stays pending forever (EnforcePartLimits=NO). They are only doubtful if
    a template or an sbatch argument may change the request, or if accounting did not respond.
    """
    obstacles = _obstacles(cluster, spec)
    findings = [*_judge_partitions(cluster, spec, obstacles), *_judge_accounts(cluster, spec, obstacles)]
    if spec.template or _has_option(spec, _OVERRIDES) or cluster.qos_flags is None:
        return list(map(str, findings))
    return findings


def _obstacles(cluster: ClusterSnapshot, spec: JobSpec) -> dict[str, str]:
    """Return why each of the job's partitions can never run it, "" if it can; one without nodes may hide them."""
    shape = shape_of(spec)
    obstacles = {}
    for partition in _partitions(cluster, spec):
        if cluster.nodes_of(partition.name):
            why = why_never(cluster, partition, spec, shape)
            obstacles[partition.name] = why or _lack_of_memory(cluster, partition, spec)
    return obstacles


def _lack_of_memory(cluster: ClusterSnapshot, partition: Partition, spec: JobSpec) -> str:
    match = re.fullmatch(r"([0-9]+)([KMGT]?)B?", spec.directive("mem").upper())
    if match is None:
        return ""
    megabytes = int(match[1]) * _MEGABYTES[match[2]]
    sizes = [node.memory for node in cluster.nodes_of(partition.name)]
    large_enough = sum(size >= megabytes for size in sizes)
    if large_enough >= spec.allocated_nodes:
        return ""
    return f"too few nodes have {spec.directive('mem')} of memory (the largest has {max(sizes) / 1024:.3g}G)"


def _judge_partitions(cluster: ClusterSnapshot, spec: JobSpec, obstacles: Mapping[str, str]) -> list[Finding]:
    requested = spec.directive("partition").split(",")
    if len(obstacles) < len(requested):
        return []  # nodes that are hidden prove nothing
    if not all(obstacles.values()):
        return []
    line = "; ".join(f"partition {name}: {why}" for name, why in obstacles.items())
    may_come_back = any(why.startswith("State=") for why in obstacles.values())
    return [line if may_come_back else RequestError(line, hint=_hint(cluster, spec))]


def _hint(cluster: ClusterSnapshot, spec: JobSpec) -> str:
    """Return the request that the first partition would take, as far as it is known."""
    partition, kind = _partitions(cluster, spec)[0], shape_of(spec).kind
    if partition.time_limit and exceeds_time_limit(partition, spec):
        return f"--time {format_time_limit(partition.time_limit)}"
    gpus = dict(pair for node in cluster.nodes_of(partition.name) for pair in node.gpus)
    if kind and kind not in gpus:
        return f"{nearest(kind, list(gpus))} {_request_for(gpus)}".strip()
    return "`clusterrun free` shows the resources of each partition"


def _request_for(gpus: Mapping[str, int]) -> str:
    """Return what to request on nodes with so many GPUs of each type."""
    if not gpus:
        return "nodes of this partition have no GPUs"
    requests = [":".join(filter(None, ["gpu", kind, str(number)])) for kind, number in gpus.items()]
    return f"on nodes of this partition, use --gres {' or --gres '.join(requests)}"


def _judge_accounts(cluster: ClusterSnapshot, spec: JobSpec, obstacles: Mapping[str, str]) -> list[Finding]:
    """Return the limits of accounts and QOS in the first partition that could run the job.

    The job can never start if it cannot in any of these partitions: another one may have another QOS.
    """
    exceeded = [exceeded_limits(cluster, spec, [name]) for name, obstacle in obstacles.items() if not obstacle]
    certain = all(any(never for _, never in limits) for limits in exceeded)
    hint = "`clusterrun free` shows your limits"
    return [RequestError(line, hint=hint) if never and certain else line for line, never in chain(*exceeded[:1])]


def judge_maintenance(
    cluster: ClusterSnapshot, spec: JobSpec, reservations: Sequence[Mapping[str, str]], now: float
) -> list[Finding]:
    """Return the maintenance that the job cannot end before, and the time limit with which it could."""
    shape = shape_of(spec)
    usable = {name for name, node in _nodes(cluster, spec).items() if node_capacity(node, shape) >= shape.each}
    findings = []
    for reservation in reservations:
        held = usable.intersection(expand(reservation.get("Nodes", "")))
        too_few_left = len(usable) - len(held) < shape.nodes
        if too_few_left and _is_maintenance(reservation) and not _is_own(reservation, spec):
            nodes = f"{len(held)} of {plural(len(usable), 'node')}"
            findings += _judge_end(reservation, nodes, time_of(cluster, spec), now)
    return findings


def _is_maintenance(reservation: Mapping[str, str]) -> bool:
    return "MAINT" in reservation.get("Flags", "").split(",")


def _is_own(reservation: Mapping[str, str], spec: JobSpec) -> bool:
    """Return whether the job runs in this reservation."""
    return reservation.get("ReservationName", "") == spec.directive("reservation")


def _judge_end(reservation: Mapping[str, str], nodes: str, seconds: int | None, now: float) -> list[Finding]:
    """Return that a job of so many seconds (None: without a limit) cannot end before the maintenance, if so."""
    start = parse_count(reservation.get("StartTime", ""))
    end = parse_count(reservation.get("EndTime", ""))
    is_over = end <= now
    ends_in_time = seconds is not None and now + seconds <= start
    if is_over or ends_in_time:
        return []
    maintenance = f"maintenance {reservation.get('ReservationName', '')}"
    period = f"from {format_time(start, now)} to {format_time(end, now)}"
    job = f"a job with a time limit of {format_duration(seconds)}" if seconds else "a job without a time limit"
    line = f"{maintenance} {period} on {nodes}: {job} cannot start before the maintenance ends"
    time_left = int(start - now - _MARGIN) // 60 * 60
    if time_left > 0:
        line += f"; a job with --time {format_time_limit(time_left)} fits before the maintenance"
    return [line]


def judge_refusal(cluster: ClusterSnapshot | None, spec: JobSpec, no: No) -> Finding:
    """Return a refusal of ``sbatch --test-only``; it is doubtful if nodes are out of service, which it counts out.

    A message that is not known as Slurm's is doubtful too.
    """
    if cluster is None:
        cluster = _UNKNOWN
    if "not available" in no.words or "busy" in no.words:
        unsure = _why_unsure(cluster, spec)
        if unsure is not None:
            return f"Slurm cannot place this job now: {no.words}{unsure}"
    error = find_error(no.words, SBATCH_ERRORS)
    if error is None:  # perhaps of a site's wrapper, which takes no script on standard input
        return f"Slurm may refuse this job: {no.words}"
    _, _, advice = error
    hint = _names_to_use(cluster, spec, no.words) or advice
    return RequestError(f"Slurm would refuse this job: {no.words}", hint=hint)


def _why_unsure(cluster: ClusterSnapshot, spec: JobSpec) -> str | None:
    """Return why a lack of nodes may pass, in parentheses, "" for no particular reason; None if it cannot pass."""
    nodes = _nodes(cluster, spec).values()
    out = [node for node in nodes if node.standing not in _IN_SERVICE]
    if out:
        return f" ({len(out)} of {plural(len(nodes), 'node')} out of service)"
    all_up = all(partition.state == "UP" for partition in _partitions(cluster, spec))
    return None if nodes and all_up else ""


def _names_to_use(cluster: ClusterSnapshot, spec: JobSpec, refusal: str) -> str:
    """Return the partitions, accounts or QOS that the user has, if Slurm does not know the job's; "" if unknown."""
    partitions = [partition.name for partition in cluster.partitions]
    near = nearest(spec.directive("partition"), partitions)
    for error, what, names in (
        ("Invalid partition", f"{near} partitions".lstrip(), partitions),
        ("Invalid account", "your accounts", sorted(cluster.me.accounts or ())),
        ("Invalid qos", "your QOS", sorted(cluster.me.qos or ())),
    ):
        if error in refusal and names:
            return f"{what}: {', '.join(names)}"
    return ""
