"""Find accounting limits that a job would exceed; ``sbatch --test-only`` ignores them (seen on 22.05). Pure."""

from __future__ import annotations

from collections.abc import Collection

from clusterrun.base.units import format_duration, plural
from clusterrun.free.limits import UserLimit
from clusterrun.free.shapes import shape_of
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.jobspec.spec import JobSpec

NEVER = "the job would never start"
_TRES = ("MaxTRESPJ", "MaxTRESPU", "MaxTRESPA", "GrpTRES")
#: limits on jobs: the noun, what follows it, and what becomes of one more
_RUNNING = ("running job", "", "the job would have to wait")
_QUEUED = ("job", " (pending and running)", "Slurm would reject the job")
_JOBS = {
    **dict.fromkeys(("MaxJobs", "MaxJobsPU", "MaxJobsPA", "GrpJobs"), _RUNNING),
    **dict.fromkeys(("MaxSubmitJobs", "MaxSubmitJobsPU", "MaxSubmitJobsPA", "GrpSubmitJobs"), _QUEUED),
}


def exceeded_limits(cluster: ClusterSnapshot, spec: JobSpec, partitions: Collection[str]) -> list[tuple[str, bool]]:
    """Return the limits that block a job in these partitions, in one line each, and whether it could never start.

    Only limits of the QOS and account that the job names count, or of the user's defaults. If several set the same
    limit, the first of these counts: the partition's QOS, the job's QOS, users and accounts (resource_limits.html).
    """
    exceeded = []
    for limit in _limits_that_count(cluster, spec, partitions):
        why = _why(limit, spec)
        if why:
            exceeded.append((f"{limit.by}: {why} ({limit.name})", why.endswith(NEVER)))
    return exceeded


def _limits_that_count(cluster: ClusterSnapshot, spec: JobSpec, partitions: Collection[str]) -> list[UserLimit]:
    account, qos = cluster.account_and_qos(spec)
    of_partitions = {partition.qos for partition in cluster.partitions if partition.name in partitions} - {""}
    first = {qos} if "OverPartQOS" in cluster.flags_of(qos) else of_partitions

    def rank(limit: UserLimit) -> int:
        """Return 0 for the QOS that counts first, 1 for another QOS, 2 for users and accounts."""
        return (limit.qos not in first) + (limit.qos == "")

    limits = [limit for limit in cluster.limits or () if limit.applies_to(account, {qos, *of_partitions})]
    counts: dict[tuple[str, str], int] = {}
    for limit in sorted(limits, key=rank):
        counts.setdefault((limit.name, limit.tres), rank(limit))
    return [limit for limit in limits if rank(limit) == counts[limit.name, limit.tres]]


def _why(limit: UserLimit, spec: JobSpec) -> str:
    """Return how the limit blocks the job, or ""."""
    left = limit.limit if limit.left is None else limit.left
    if limit.name in _TRES:
        return _too_much(limit, left, *_requested(limit.tres, spec))
    if limit.name == "MaxWallPJ":
        return _too_long(limit, spec)
    if left or limit.name not in _JOBS:
        return ""
    noun, which, then = _JOBS[limit.name]
    return f"the limit of {plural(int(limit.limit), noun)}{which} has been reached; {then}"


def _too_long(limit: UserLimit, spec: JobSpec) -> str:
    seconds = limit.limit * 60
    if (spec.time_limit or 0) <= seconds:
        return ""
    return f"the job's time limit exceeds the maximum of {format_duration(seconds)}; {NEVER}"


def _too_much(limit: UserLimit, left: float, count: int, noun: str) -> str:
    if count > limit.limit:
        verb = "exceeds" if count == 1 else "exceed"
        return f"{plural(count, noun)} {verb} the limit of {limit.limit:.0f}; {NEVER}"
    if count > left:
        most, room = plural(int(limit.limit), noun), f"{left:.0f}" if left else "no"
        return f"the limit of {most} leaves room for {room} more; the job would have to wait"
    return ""


def _requested(tres: str, spec: JobSpec) -> tuple[int, str]:
    """Return the requested amount of a resource, for CPUs the minimum, and its name."""
    if tres == "node":
        return spec.allocated_nodes, "node"
    if tres == "cpu":
        return spec.allocated_nodes * spec.tasks_per_node * (spec.cpus_per_task or 1), "CPU"
    shape = shape_of(spec)
    if shape.unit == "GPU" and tres in ("gres/gpu", f"gres/gpu:{shape.kind}"):
        return shape.nodes * shape.each, "GPU"
    return 0, ""
