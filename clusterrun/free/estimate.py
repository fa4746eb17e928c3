"""Estimate where a job would start soonest with ``sbatch --test-only`` per partition and shape.

The job is planned as ``submit`` plans it. Nothing is submitted or written. A limited number of queries run one after
the other, the most promising first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from clusterrun.base.errors import ClusterrunError, Refused, RequestError, SchedulerError, nearest
from clusterrun.base.units import format_duration, format_when, plural
from clusterrun.free.account_limits import exceeded_limits
from clusterrun.free.shapes import (
    Shape,
    has_room_now,
    node_capacity,
    reshape_values,
    shape_of,
    shapes_alike,
    submit_command,
    why_never,
)
from clusterrun.free.snapshot import ClusterSnapshot, Preemption, load_snapshot
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import JobSpec
from clusterrun.scheduler import Scheduler, SlurmCommands
from clusterrun.scheduler.slurm.nodes import Partition
from clusterrun.scheduler.slurm.sbatch import No, Start, estimate_start
from clusterrun.submit import plan as planning
from clusterrun.submit.request import Request, SubmitArgs

AUTO = "auto"
MOST_QUESTIONS = 12
#: Seconds for one query, and for all of them: a busy controller must not keep the user waiting.
ONE, ALL = 15.0, 60.0


@dataclass(frozen=True, slots=True)
class ShapeEstimate:
    """Slurm's estimated start of one shape in one partition, and the command to submit it.

    ``given_time`` is the partition's default time limit in seconds if the job requests none. ``preemption`` is set if
    the partition's jobs can be preempted.
    """

    shape: Shape
    partition: str
    start: Start
    command: str
    given_time: int | None = None
    preemption: Preemption | None = None

    @property
    def at(self) -> float:
        """Return the start time as a sort key; an unknown one sorts last."""
        return math.inf if self.start.at is None else self.start.at

    @property
    def is_now(self) -> bool:
        return self.at < math.inf and format_when(self.at, time.time()) == "now"

    @property
    def order(self) -> tuple[float, bool, float]:
        """Return the sort key: the soonest first; of those that start now, those that no other job preempts."""
        return 0.0 if self.is_now else self.at, self.preemption is not None, self.at


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEstimates:
    """The estimates, soonest first. ``refused`` has each other shape with its partition and Slurm's answer.

    ``no`` are (shape, partition, reason) that were not queried. ``unasked`` counts queries that were left out, because
    they were too many or Slurm did not respond. ``exceeded_limits`` are accounting limits, which the estimates ignore.
    """

    shape: Shape
    starts: tuple[ShapeEstimate, ...]
    refused: tuple[tuple[Shape, str, No], ...] = ()
    no: tuple[tuple[Shape, str, str], ...] = ()
    unasked: int = 0
    dependency: str = ""
    exceeded_limits: tuple[str, ...] = ()

    @property
    def silence(self) -> str:
        """Return the error if Slurm did not respond, else ""."""
        for _, _, answer in self.refused:
            if answer.is_silence:
                return answer.words
        return ""


@dataclass(frozen=True, slots=True)
class EstimateContext:
    """What an estimate needs: the request, the context of its plan, and the scheduler."""

    request: Request
    scheduler: Scheduler | None
    here: planning.LocalContext
    has_gpus: bool | None
    asked: SubmitArgs = field(default_factory=SubmitArgs)
    now: Callable[[], float] = time.monotonic

    @property
    def slurm(self) -> SlurmCommands:
        assert self.scheduler is not None and self.scheduler.slurm is not None
        return self.scheduler.slurm

    def plan(self, changed: Mapping[str, Value]) -> planning.Plan:
        """Return ``submit``'s plan of the job with some values changed, without a name."""
        request = replace(self.request, values={**self.request.values, **changed})
        return planning.plan(request, self.scheduler, self.has_gpus, self.here, named=False)


def soonest(context: EstimateContext, cluster: ClusterSnapshot) -> StartEstimates:
    """Estimate the requested shape and similar ones, in the given partitions or in all.

    Raises RequestError for an unknown partition.
    """
    typed = context.asked.flags.get("partition")
    partitions = find_partitions(cluster, str(typed.value)) if typed else list(cluster.partitions)
    spec = context.plan({}).spec
    shape = shape_of(spec)
    most = max((node_capacity(node, shape) for node in cluster.nodes), default=shape.each)
    estimates = _estimate(context, cluster, spec, shapes_alike(shape, most), partitions, first_now=False)
    exceeded = exceeded_limits(cluster, spec, [start.partition for start in estimates.starts])
    return replace(estimates, exceeded_limits=tuple(line for line, _ in exceeded))


def choose_partition(context: EstimateContext, user: str) -> Request:
    """Return the request with ``partition = auto`` replaced by the partition with the earliest start.

    A partition that is named ``auto`` is used itself. Raises RequestError or Refused if no partition accepts the job,
    SchedulerError if Slurm does not respond.
    """
    request, value = context.request, context.request.values.get("partition")
    if value is None or value.value != AUTO:
        return request
    if context.scheduler is None:
        return _without_partition(request)
    if context.scheduler.slurm is None:
        return request
    cluster = load_snapshot(context.slurm, user, limits=False)
    if AUTO in {partition.name for partition in cluster.partitions}:
        return request
    estimates = _estimate_partitions(context, cluster)
    if not estimates.starts:
        raise _no_start(estimates)
    best, checked = estimates.starts[0], len(estimates.starts) + len(estimates.refused)
    start = f"earliest start (Slurm's estimate): {format_when(best.start.at, time.time())}"
    line = f"partition {best.partition}: {start} ({plural(checked, 'partition')} checked)"
    if best.given_time:
        line += f"; without --time, the job gets the partition's default time limit: {format_duration(best.given_time)}"
    if best.preemption:
        line += f"; {best.preemption.sentence}"
    chosen = Value(best.partition, f"{value.source}: auto, {start}")
    return replace(request, values={**request.values, "partition": chosen}, notices=[*request.notices, line])


def _without_partition(request: Request) -> Request:
    """Return the request for a script that is rendered on another machine."""
    line = "--partition auto: cannot choose a partition without Slurm, so the script does not set one"
    values = {name: value for name, value in request.values.items() if name != "partition"}
    return replace(request, values=values, notices=[*request.notices, line])


def _estimate_partitions(context: EstimateContext, cluster: ClusterSnapshot) -> StartEstimates:
    """Estimate the requested shape in all partitions but those that would give the job too little time."""
    spec = context.plan({}).spec
    shape = shape_of(spec)
    too_short = _shorter_time_limits(cluster, spec)
    partitions = [partition for partition in cluster.partitions if partition.name not in too_short]
    estimates = _estimate(context, cluster, spec, [shape], partitions, first_now=True)
    return replace(estimates, no=(*estimates.no, *((shape, name, why) for name, why in too_short.items())))


def _shorter_time_limits(cluster: ClusterSnapshot, spec: JobSpec) -> dict[str, str]:
    """Return the partitions where a job without --time gets less time than in the default partition, and why."""
    if "time" in spec.sources:
        return {}
    given = {}
    usual = 0.0
    for partition in cluster.partitions:
        seconds = math.inf if partition.given_time is None else partition.given_time
        given[partition.name] = seconds
        if partition.default:
            usual = seconds
    words = "without --time, the time limit would be only {}"
    return {name: words.format(format_duration(seconds)) for name, seconds in given.items() if seconds < usual}


def _no_start(estimates: StartEstimates) -> ClusterrunError:
    """Return the error that no partition can be chosen: Slurm did not respond, or none accepts the job."""
    reasons = "\n".join(f"{where}: {why}" for where, why in refusals(estimates))
    if estimates.silence:
        return SchedulerError(
            "Slurm did not return all start estimates, so nothing was submitted",
            detail=reasons, hint="try again, or choose a partition with --partition NAME",
        )  # fmt: skip
    error = Refused if estimates.refused else RequestError
    return error("no partition accepts this job", detail=reasons, hint="run `clusterrun free` to see the partitions")


def refusals(estimates: StartEstimates) -> list[tuple[str, str]]:
    """Return the partitions and shapes that were rejected, by reason: ``gpu, low (2x4, 1x8)`` and the reason."""
    shapes = {estimate.shape for estimate in estimates.starts}
    by_reason: dict[str, dict[str, list[str]]] = {}
    by_slurm = ((shape, partition, answer.words) for shape, partition, answer in estimates.refused)
    for shape, partition, why in chain(by_slurm, estimates.no):
        shapes.add(shape)
        by_reason.setdefault(why, {}).setdefault(partition, []).append(str(shape))
    places = _places if len(shapes) > 1 else ", ".join
    return [(places(partitions), why) for why, partitions in by_reason.items()]


def _places(partitions: Mapping[str, Sequence[str]]) -> str:
    """Return ``gpu, low (2x4, 1x8); big (2x4)`` for the shapes of each partition."""
    by_shapes: dict[str, list[str]] = {}
    for partition, shapes in partitions.items():
        by_shapes.setdefault(", ".join(dict.fromkeys(shapes)), []).append(partition)
    return "; ".join(f"{', '.join(names)} ({shapes})" for shapes, names in by_shapes.items())


def _estimate(
    context: EstimateContext, cluster: ClusterSnapshot, spec: JobSpec, shapes: Sequence[Shape],
    partitions: Sequence[Partition], *, first_now: bool,
) -> StartEstimates:  # fmt: skip
    """Estimate, most promising first; with ``first_now`` stop at the first partition where the job starts now.

    After a partition whose jobs can be preempted, those without preemption are still tried.
    """
    requested = shape_of(spec)
    candidates, no = _candidates(cluster, spec, shapes, partitions)
    starts: list[ShapeEstimate] = []
    refused: list[tuple[Shape, str, No]] = []
    end = context.now() + ALL
    for shape, partition in candidates:
        left = end - context.now()
        if left <= 0 or len(starts) + len(refused) >= MOST_QUESTIONS:
            break
        preemption = cluster.preempted.get(partition.name)
        if first_now and _is_beaten(preemption, starts):
            continue
        changed = reshape_values(context.request.values, requested, shape)
        if changed is None:
            no.append((shape, partition.name, "the job has a fixed number of nodes or ranks"))
            continue
        changed["partition"] = Value(partition.name, AUTO)
        plan = context.plan(changed)
        answer = estimate_start(context.slurm, plan.submission, plan.script, timeout=min(ONE, left))
        if isinstance(answer, Start):
            given = None if "time" in context.request.values else partition.given_time
            command = submit_command(context.asked, changed)
            starts.append(ShapeEstimate(shape, partition.name, answer, command, given, preemption))
            continue
        refused.append((shape, partition.name, answer))
        if answer.is_silence:
            break
    starts.sort(key=lambda start: (*start.order, start.shape != requested))
    refused.sort(key=lambda refusal: (refusal[1] in cluster.preempted, refusal[0] != requested))
    return StartEstimates(
        shape=requested, starts=tuple(starts), refused=tuple(refused), no=tuple(no),
        unasked=max(0, len(shapes) * len(partitions) - len(starts) - len(refused) - len(no)),
        dependency=spec.directive("dependency"),
    )  # fmt: skip


def _candidates(
    cluster: ClusterSnapshot, spec: JobSpec, shapes: Sequence[Shape], partitions: Sequence[Partition]
) -> tuple[list[tuple[Shape, Partition]], list[tuple[Shape, str, str]]]:
    """Return the shapes and partitions to query, most promising first, and those that can never run the job."""
    candidates: list[tuple[Shape, Partition]] = []
    no: list[tuple[Shape, str, str]] = []
    for shape in shapes:
        for partition in partitions:
            why = why_never(cluster, partition, spec, shape)
            if why:
                no.append((shape, partition.name, why))
            else:
                candidates.append((shape, partition))

    def order(candidate: tuple[Shape, Partition]) -> tuple[bool, int, bool, bool, int]:
        shape, partition = candidate
        has_room = has_room_now(cluster, partition, shape)
        is_preempted = partition.name in cluster.preempted
        size = sum(node_capacity(node, shape) for node in cluster.nodes_of(partition.name))
        return not has_room, shapes.index(shape), is_preempted, not _is_own(partition, spec), -size

    return sorted(candidates, key=order), no


def _is_own(partition: Partition, spec: JobSpec) -> bool:
    """Return whether the job names this partition, or none and this is the default."""
    own = spec.directive("partition")
    return partition.name == own or (own in ("", AUTO) and partition.default)


def _is_beaten(preemption: Preemption | None, starts: Sequence[ShapeEstimate]) -> bool:
    """Return whether the job starts now in another partition that is no worse than one with this preemption."""
    for estimate in starts:
        is_worse = preemption is None and estimate.preemption is not None
        if estimate.is_now and not is_worse:
            return True
    return False


def find_partitions(cluster: ClusterSnapshot, names: str) -> list[Partition]:
    """Return the partitions of a ``--partition`` list; raises RequestError with the nearest name."""
    by_name = {partition.name: partition for partition in cluster.partitions}
    if names == AUTO and AUTO not in by_name:
        return list(cluster.partitions)
    requested = list(filter(None, names.split(","))) or [names]
    for name in requested:
        if name not in by_name:
            hint = f"{nearest(name, [*by_name])} partitions: {', '.join(by_name)}".strip()
            raise RequestError(f"no such partition: {name!r}", hint=hint)
    return [by_name[name] for name in requested]
