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


def cost_line(seen: ClusterSnapshot | None, spec: JobSpec, start: Start | None, tasks: int = 1) -> str:
    """Return ``2 nodes x 4 GPUs x 12 h = 96 GPU-hours; Slurm expects the job to start at 14:20 on gpu[03-04]``.

    ``tasks`` is the number of jobs like this one, of a sweep.
    """
    from clusterrun.preflight.limits import time_of

    seconds = time_of(seen, spec) if seen else spec.time_limit
    return _cost(spec, seconds or 0, tasks) + _expected_start(spec, start)


def _cost(spec: JobSpec, seconds: int, tasks: int) -> str:
    """Return ``2 nodes x 4 GPUs x 12 h = 96 GPU-hours``; ``seconds`` is the time limit, 0 if there is none."""
    each, unit = (spec.gpus_on_each_node, "GPU") if spec.gpus_per_node != 0 else (_cpus(spec), "CPU")
    starts = _starts(spec, seconds)
    factors = [
        plural(tasks, "task") if tasks > 1 else "",
        plural(spec.allocated_nodes, "node"),
        plural(each, unit),
        _hours(seconds) if seconds else "",
        plural(starts, "start") if starts > 1 else "",
    ]
    line = " x ".join(filter(None, factors))
    if not seconds:
        return line
    cost = tasks * spec.allocated_nodes * each * starts * seconds / 3600
    return f"{line} = {format_amount(cost)} {unit}-hour{'s' * (cost != 1)}"


def _expected_start(spec: JobSpec, start: Start | None) -> str:
    if start is None or start.at is None:
        return ""
    now = time.time()
    when = "now" if start.at - now <= 60 else f"at {format_time(start.at, now).removeprefix('today ')}"
    after = f" (after dependency {spec.directive('dependency')})" if spec.directive("dependency") else ""
    jobs = "job" if len(start.preempts) == 1 else "jobs"
    preempts = f", preempting {jobs} {', '.join(start.preempts)}" if start.preempts else ""
    return f"; Slurm expects the job to start {when} on {start.nodes}{preempts}{after}"


def gpu_hours(spec: JobSpec) -> float | None:
    """Return the GPU-hours that a job may use within its time limits; None if its options do not determine them."""
    gres = spec.directive("gres")
    own_options = [one for one in spec.sbatch_args if one != KILL_ON_INVALID_DEP]
    if spec.template or own_options or spec.directive("nodelist") or (gres and not has_known_gpus(gres)):
        return None
    each = gres_gpus(gres) if gres else spec.gpus_per_node
    if each == 0:
        return 0.0
    if each is None or not spec.time_limit:
        return None
    return spec.allocated_nodes * each * _starts(spec, spec.time_limit) * spec.time_limit / 3600


def _starts(spec: JobSpec, seconds: int) -> int:
    """Return how many starts of at most so many seconds --total-time allows."""
    return math.ceil((spec.total_time or 0) / seconds) or 1 if seconds else 1


def summary(spec: JobSpec, command: str, *, local: bool = False) -> dict[str, str]:
    """Return what ``--dry-run`` prints: a name and a text for each of six lines; ``local`` without a cluster."""
    gpus = spec.directive("gres") if spec.gpus_per_node is None else str(spec.gpus_per_node)
    spares = f", including {plural(spec.spare_nodes, 'spare')}" if spec.spare_nodes else ""
    image = spec.container_image
    unset = "no limit" if local or "time" in spec.sources else "the partition's default"
    partition = "none (the job runs on this machine)" if local else spec.directive("partition")
    return {
        "nodes": f"{spec.allocated_nodes}{spares}",
        "GPUs": f"{gpus} per node, {plural(spec.world_size, 'rank')}",
        "time": format_time_limit(spec.time_limit) if spec.time_limit else unset,
        "partition": partition or "the cluster's default",
        "python": f"{spec.container_python} in {image} ({spec.container_runtime})" if image else spec.python,
        "command": command,
    }


def _cpus(spec: JobSpec) -> int:
    return spec.tasks_per_node * (spec.cpus_per_task or 1)


def _hours(seconds: int) -> str:
    return f"{format_amount(seconds / 3600)} h" if seconds >= 3600 else f"{format_amount(seconds / 60)} min"
