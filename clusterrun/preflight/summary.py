"""A planned job in one line (its cost and expected start), and in the six lines of ``--dry-run``. Pure."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from clusterrun.base.units import format_amount, format_time, format_time_limit, plural
from clusterrun.jobspec.fields import gres_gpus, has_known_gpus
from clusterrun.jobspec.spec import JobSpec
from clusterrun.scheduler import KILL_ON_INVALID_DEP

if TYPE_CHECKING:
    from clusterrun.free.snapshot import ClusterSnapshot
    from clusterrun.scheduler.slurm.sbatch import Start


def cost_line(cluster: ClusterSnapshot | None, spec: JobSpec, start: Start | None, tasks: int = 1) -> str:
    """Return ``2 nodes x 4 GPUs x 12 h = 96 GPU-hours; Slurm expects the job to start at 14:20 on gpu[03-04]``.

    ``tasks`` is the number of jobs like this one, of a sweep.
    """
    from clusterrun.preflight.limits import time_of

    seconds = time_of(cluster, spec) if cluster else spec.time_limit
    return _cost(spec, seconds, tasks) + _expected_start(spec, start)


def _cost(spec: JobSpec, seconds: int | None, tasks: int) -> str:
    """Return ``2 nodes x 4 GPUs x 12 h = 96 GPU-hours``; ``seconds`` is the time limit, if there is one."""
    each, unit = spec.gpus_on_each_node, "GPU"
    if spec.gpus_per_node == 0:
        each, unit = spec.tasks_per_node * (spec.cpus_per_task or 1), "CPU"
    shape = f"{plural(spec.allocated_nodes, 'node')} x {plural(each, unit)}"
    if tasks > 1:
        shape = f"{plural(tasks, 'task')} x {shape}"
    if not seconds:
        return shape
    starts = _starts(spec, seconds)
    time_in_all = f"{_hours(seconds)} x {plural(starts, 'start')}" if starts > 1 else _hours(seconds)
    cost = tasks * spec.allocated_nodes * each * starts * seconds / 3600
    return f"{shape} x {time_in_all} = {format_amount(cost)} {unit}-hour{'s' * (cost != 1)}"


def _expected_start(spec: JobSpec, start: Start | None) -> str:
    """Return ``; Slurm expects the job to start at 14:20 on gpu[03-04]``, or nothing if it did not say when."""
    if spec.directive("dependency"):  # Slurm's estimate does not count it
        return f"; the job waits for its dependency {spec.directive('dependency')}"
    if start is None or start.at is None:
        return ""
    now = time.time()
    when = "now" if start.at - now <= 60 else f"at {format_time(start.at, now).removeprefix('today ')}"
    line = f"; Slurm expects the job to start {when} on {start.nodes}"
    if start.preempts:
        line += f", preempting job{'s' * (len(start.preempts) > 1)} {', '.join(start.preempts)}"
    return line


def gpu_hours(spec: JobSpec) -> float | None:
    """Return the GPU-hours that a job may use within its time limits; None if its options do not determine them."""
    if _may_change_size(spec):
        return None
    each = _known_gpus_per_node(spec)
    if each == 0:
        return 0.0
    if each is None or not spec.time_limit:
        return None
    return spec.allocated_nodes * each * _starts(spec, spec.time_limit) * spec.time_limit / 3600


def _may_change_size(spec: JobSpec) -> bool:
    """Return whether an option that only sbatch or the template understands may set nodes or GPUs."""
    own_arguments = set(spec.sbatch_args) - {KILL_ON_INVALID_DEP}
    return bool(own_arguments or spec.template or spec.directive("nodelist"))


def _known_gpus_per_node(spec: JobSpec) -> int | None:
    gres = spec.directive("gres")
    if not gres:
        return spec.gpus_per_node
    return gres_gpus(gres) if has_known_gpus(gres) else None


def _starts(spec: JobSpec, seconds: int) -> int:
    """Return how many starts of at most so many seconds --total-time allows."""
    return max(1, math.ceil(spec.total_time / seconds))


def _hours(seconds: int) -> str:
    return f"{format_amount(seconds / 3600)} h" if seconds >= 3600 else f"{format_amount(seconds / 60)} min"


def summary(spec: JobSpec, command: str, *, local: bool = False) -> dict[str, str]:
    """Return what ``--dry-run`` prints: a name and a text for each of six lines; ``local`` without a cluster."""
    return {
        "nodes": _nodes_line(spec),
        "GPUs": f"{_gpus_line(spec)} per node, {plural(spec.world_size, 'rank')}",
        "time": _time_line(spec, local),
        "partition": _partition_line(spec, local),
        "python": _python_line(spec),
        "command": command,
    }


def _nodes_line(spec: JobSpec) -> str:
    if not spec.spare_nodes:
        return str(spec.nodes)
    return f"{spec.allocated_nodes}, including {plural(spec.spare_nodes, 'spare')}"


def _gpus_line(spec: JobSpec) -> str:
    return spec.directive("gres") if spec.gpus_per_node is None else str(spec.gpus_per_node)


def _time_line(spec: JobSpec, local: bool) -> str:
    if spec.time_limit:
        return format_time_limit(spec.time_limit)
    if spec.in_job:
        return f"until job {spec.in_job} ends"
    is_unlimited = local or "time" in spec.sources
    return "no limit" if is_unlimited else "the partition's default"


def _partition_line(spec: JobSpec, local: bool) -> str:
    if spec.in_job:
        return f"none (the run starts inside job {spec.in_job})"
    if local:
        return "none (the job runs on this machine)"
    return spec.directive("partition") or "the cluster's default"


def _python_line(spec: JobSpec) -> str:
    if not spec.container_image:
        return spec.python
    return f"{spec.container_python} in {spec.container_image} ({spec.container_runtime})"
