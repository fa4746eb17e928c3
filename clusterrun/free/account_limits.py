"""Find accounting limits that a job would exceed; ``sbatch --test-only`` ignores them (seen on 22.05). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from clusterrun.base.units import format_duration, plural
from clusterrun.free.limits import UserLimit
from clusterrun.free.shapes import Need
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.jobspec.spec import JobSpec

NEVER = "the job would never start"
_TRES = ("MaxTRESPJ", "MaxTRESPU", "MaxTRESPA", "GrpTRES")
_RUNNING = ("MaxJobs", "MaxJobsPU", "MaxJobsPA", "GrpJobs")
_QUEUED = ("MaxSubmitJobs", "MaxSubmitJobsPU", "MaxSubmitJobsPA", "GrpSubmitJobs")


class Exceeded(NamedTuple):
    """A limit that blocks a job, in one line; ``never`` means that the job could never start."""

    line: str
    never: bool


def exceeded_limits(
    seen: ClusterSnapshot, spec: JobSpec, need: Need, gpus: int, partitions: Iterable[str]
) -> list[Exceeded]:
    """Return the limits that block a job with so many GPUs in these partitions.

    Only limits of the QOS and account that the job names count, or of the user's defaults. If several set the same
    limit, the first of these counts: the partition's QOS, the job's QOS, users and accounts (resource_limits.html).
    """
    account = spec.directive("account") or seen.default_account
    own = spec.directive("qos") or seen.default_qos(account)
    of_partitions = {p.qos for p in seen.partitions if p.name in set(partitions)} - {""}
    first = {own} if "OverPartQOS" in (seen.qos_flags or {}).get(own, ()) else of_partitions
    mine = [
        limit
        for limit in seen.limits or ()
        if (not limit.qos or limit.qos in {own, *of_partitions}) and (not limit.accounts or account in limit.accounts)
    ]
    setters: dict[tuple[str, str], set[str]] = {}
    for limit in mine:
        setters.setdefault((limit.name, limit.tres), set()).add(limit.qos)
    found = []
    for limit in mine:
        names = setters[limit.name, limit.tres]
        if limit.qos in ((names & first) or (names - {""}) or names) and (why := _why(limit, spec, need, gpus)):
            found.append(Exceeded(f"{limit.by}: {why} ({limit.name})", why.endswith(NEVER)))
    return found


def _why(limit: UserLimit, spec: JobSpec, need: Need, gpus: int) -> str:
    left = limit.limit if limit.left is None else limit.left
    if limit.name in _TRES:
        return _too_much(limit, left, *_requested(limit.tres, spec, need, gpus))
    if limit.name == "MaxWallPJ" and spec.time_limit and spec.time_limit > limit.limit * 60:
        return f"the job's time limit exceeds the maximum of {format_duration(limit.limit * 60)}; {NEVER}"
    if limit.name in _RUNNING and left == 0:
        return f"the limit of {plural(int(limit.limit), 'running job')} has been reached; the job would have to wait"
    if limit.name in _QUEUED and left == 0:
        most = plural(int(limit.limit), "job")
        return f"the limit of {most} (pending and running) has been reached; Slurm would reject the job"
    return ""


def _too_much(limit: UserLimit, left: float, count: int, noun: str) -> str:
    if count > limit.limit:
        more = f"{plural(count, noun)} {'exceeds' if count == 1 else 'exceed'} the limit of {limit.limit:.0f}"
        return f"{more}; {NEVER}"
    if count > left:
        most = plural(int(limit.limit), noun)
        return f"the limit of {most} leaves room for {f'{left:.0f}' if left else 'no'} more; the job would have to wait"
    return ""


def _requested(tres: str, spec: JobSpec, need: Need, gpus: int) -> tuple[int, str]:
    """Return the requested amount of a resource, for CPUs the minimum, and its name."""
    if need.gpus and tres in ("gres/gpu", f"gres/gpu:{need.kind}"):
        return gpus, "GPU"
    if tres == "cpu":
        return spec.allocated_nodes * spec.tasks_per_node * (spec.cpus_per_task or 1), "CPU"
    return (spec.allocated_nodes, "node") if tres == "node" else (0, "")
