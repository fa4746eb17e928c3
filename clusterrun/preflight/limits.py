"""Judge a job by Slurm's answers about the cluster: what can never start, and what is doubtful. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterrun.base.errors import nearest
from clusterrun.base.units import format_duration, format_time, format_time_limit, plural
from clusterrun.free.account_limits import exceeded_limits
from clusterrun.free.fits import check_fit, node_capacity
from clusterrun.free.shapes import shape_of
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.jobspec.fields import sbatch_option
from clusterrun.jobspec.spec import JobSpec
from clusterrun.preflight.findings import Finding
from clusterrun.scheduler.slurm.hostlist import expand
from clusterrun.scheduler.slurm.nodes import OPEN, Partition
from clusterrun.scheduler.slurm.sbatch import SBATCH_ERRORS, No
from clusterrun.scheduler.slurm.values import parse_int

#: sbatch's own options that change what is judged here.
_OVERRIDES = {"partition", "p", "qos", "q", "account", "A", "time", "t", "time-min", "gres", "overcommit", "O"}
#: Conditions in which a node takes jobs, now or when it is started.
_IN_SERVICE = (*OPEN, "allocated", "completing", "powered down")
#: Seconds for which a job waits at least before a reservation that it is to end before.
_MARGIN = 300


def judge_shell(seen: ClusterSnapshot, spec: JobSpec, seconds: int) -> list[Finding]:
    """Warn of a shell whose limit on processor time the job would get; ``seconds`` is -1 without a limit."""
    if seconds < 0 or not seen.passes_cpu_limit or "propagate" in map(sbatch_option, spec.sbatch_args):
        return []
    limit = f"this shell limits each process to {seconds:,} s of processor time (ulimit -t)"
    return [Finding(f"{limit}, and Slurm gives the job the same limit: to avoid it, add --sbatch-arg=--propagate=NONE")]


def partitions_of(seen: ClusterSnapshot, spec: JobSpec) -> list[Partition]:
    """Return the job's partitions, or the default one; hidden partitions are unknown."""
    names = spec.directive("partition").split(",")
    return [p for p in seen.partitions if (p.name in names if names != [""] else p.default)]


def time_of(seen: ClusterSnapshot, spec: JobSpec) -> int | None:
    """Return the job's time limit in seconds, the partition's default if it requests none; None without a limit."""
    if "time" in spec.sources:
        return spec.time_limit
    given = [p.given_time for p in partitions_of(seen, spec)]
    return max((seconds for seconds in given if seconds), default=None)


def judge_limits(seen: ClusterSnapshot, spec: JobSpec) -> list[Finding]:
    """Return the limits of partitions, accounts and QOS in the job's way.

    Slurm may accept such a job, which then stays pending forever (EnforcePartLimits=NO). They are only doubtful if
    a template or an sbatch argument may change the request, or if accounting did not respond.
    """
    overridden = spec.template or _OVERRIDES & {sbatch_option(one) for one in spec.sbatch_args}
    certain = not overridden and seen.qos_flags is not None
    found = [*_judge_partitions(seen, spec), *_judge_accounts(seen, spec)]
    return [one._replace(never=one.never and certain) for one in found]


def _judge_partitions(seen: ClusterSnapshot, spec: JobSpec) -> list[Finding]:
    reasons = _obstacles(seen, spec)
    known = len(reasons) == len(spec.directive("partition").split(","))  # nodes that are hidden prove nothing
    if not known or not all(reasons.values()):
        return []
    line = "; ".join(f"partition {name}: {why}" for name, why in reasons.items())
    # a partition that is down may come back
    return [Finding(line, _hint(seen, spec), never=not any(why.startswith("State=") for why in reasons.values()))]


def _obstacles(seen: ClusterSnapshot, spec: JobSpec) -> dict[str, str]:
    """Return why each of the job's partitions can never run it, "" if it can."""
    shape, need = shape_of(spec)
    partitions = [p for p in partitions_of(seen, spec) if seen.nodes_of(p.name)]
    return {p.name: check_fit(seen, p, spec, shape, need)[0] or _memory(seen, p, spec) for p in partitions}


def _memory(seen: ClusterSnapshot, partition: Partition, spec: JobSpec) -> str:
    match = re.fullmatch(r"([0-9]+)([KMGT]?)B?", spec.directive("mem").upper())
    if match is None:
        return ""
    megabytes = int(match[1]) * 1024 ** ("KMGT".index(match[2] or "M") - 1)
    sizes = [node.memory for node in seen.nodes_of(partition.name)]
    if sum(size >= megabytes for size in sizes) >= spec.allocated_nodes:
        return ""
    return f"too few nodes have {spec.directive('mem')} of memory (the largest has {max(sizes) / 1024:.3g}G)"


def _hint(seen: ClusterSnapshot, spec: JobSpec) -> str:
    """Return the request that the first partition would take, as far as it is known."""
    partition, need = partitions_of(seen, spec)[0], shape_of(spec)[1]
    if partition.time_limit and spec.time_limit and spec.time_limit > partition.time_limit:
        return f"--time {format_time_limit(partition.time_limit)}"
    kinds = {kind: number for node in seen.nodes_of(partition.name) for kind, number in node.gpus}
    if need.kind and need.kind not in kinds:
        there = " or ".join(f"--gres gpu{f':{kind}' if kind else ''}:{number}" for kind, number in kinds.items())
        known = f"on nodes of this partition, use {there}" if there else "nodes of this partition have no GPUs"
        return f"{nearest(need.kind, list(kinds))} {known}".strip()
    return "`clusterrun free` shows the resources of each partition"


def _judge_accounts(seen: ClusterSnapshot, spec: JobSpec) -> list[Finding]:
    shape, need = shape_of(spec)
    gpus = shape.nodes * shape.each if need.gpus else 0
    fitting = [name for name, why in _obstacles(seen, spec).items() if not why]
    exceeded = [exceeded_limits(seen, spec, need, gpus, [name]) for name in fitting]
    certain = all(any(one.never for one in some) for some in exceeded)  # another partition may have another QOS
    hint = "`clusterrun free` shows your limits"
    return [Finding(one.line, hint, one.never and certain) for some in exceeded[:1] for one in some]


def judge_maintenance(
    seen: ClusterSnapshot, spec: JobSpec, reservations: Sequence[dict[str, str]], now: float
) -> list[Finding]:
    """Return the maintenance that the job cannot end before, and the time limit with which it could."""
    shape, need = shape_of(spec)
    nodes = {node.name: node for p in partitions_of(seen, spec) for node in seen.nodes_of(p.name)}
    usable = {name for name, node in nodes.items() if node_capacity(node, need) >= shape.each}
    seconds = time_of(seen, spec)
    found = []
    for block in reservations:
        start, end = (parse_int(block.get(key, "")) or 0 for key in ("StartTime", "EndTime"))
        held = usable & set(expand(block.get("Nodes", "")))
        name = block.get("ReservationName", "")
        if "MAINT" not in block.get("Flags", "").split(",") or name == spec.directive("reservation"):
            continue
        in_time = seconds is not None and now + seconds <= start
        if end <= now or in_time or len(usable) - len(held) >= shape.nodes:
            continue
        fits = int(start - now - _MARGIN) // 60 * 60
        less = f"; a job with --time {format_time_limit(fits)} fits before the maintenance" if fits > 0 else ""
        job = f"a job with a time limit of {format_duration(seconds)}" if seconds else "a job without a time limit"
        found.append(Finding(
            f"maintenance {name} from {format_time(start, now)} to {format_time(end, now)} on {len(held)} of"
            f" {plural(len(usable), 'node')}: {job} cannot start before the maintenance ends{less}"
        ))  # fmt: skip
    return found


def judge_refusal(seen: ClusterSnapshot | None, spec: JobSpec, no: No) -> Finding:
    """Return a refusal of ``sbatch --test-only``; it is doubtful if nodes are out of service, which it counts out.

    A message that is not known as Slurm's is doubtful too.
    """
    partitions = partitions_of(seen, spec) if seen else []
    nodes = [node for p in partitions for node in (seen.nodes_of(p.name) if seen else ())]
    out = [node for node in nodes if node.standing not in _IN_SERVICE]
    passing = any(text in no.words for text in ("not available", "busy"))
    if passing and (not nodes or out or any(p.state != "UP" for p in partitions)):
        which = f" ({len(out)} of {plural(len(nodes), 'node')} out of service)" if out else ""
        return Finding(f"Slurm cannot place this job now: {no.words}{which}")
    known = next((error for error in SBATCH_ERRORS if error.text in no.words), None)
    if known is None:  # perhaps of a site's wrapper, which takes no script on standard input
        return Finding(f"Slurm may refuse this job: {no.words}")
    hint = known.hint
    if seen and "Invalid partition" in no.words:
        names = [p.name for p in seen.partitions]
        hint = f"{nearest(spec.directive('partition'), names)} partitions: {', '.join(names)}".strip()
    mine = seen.me if seen else None
    if mine and mine.accounts and "Invalid account" in no.words:
        hint = f"your accounts: {', '.join(sorted(mine.accounts))}"
    if mine and mine.qos and "Invalid qos" in no.words:
        hint = f"your QOS: {', '.join(sorted(mine.qos))}"
    return Finding(f"Slurm would refuse this job: {no.words}", hint, never=True)
