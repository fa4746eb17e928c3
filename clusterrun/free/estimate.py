"""Estimate where a job would start soonest with ``sbatch --test-only`` per partition and shape.

The job is planned as ``submit`` plans it. Nothing is submitted or written. A limited number of queries run one after
the other, the most promising first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clusterrun.base.errors import Refused, RequestError, SchedulerError, nearest
from clusterrun.base.units import format_duration, format_when, plural
from clusterrun.free.account_limits import exceeded_limits
from clusterrun.free.fits import has_room_now, node_capacity, why_never
from clusterrun.free.preemption import Preemption
from clusterrun.free.shapes import Need, Shape, reshape_values, shape_of, shapes_alike, submit_command
from clusterrun.free.snapshot import ClusterSnapshot, load_snapshot
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import JobSpec
from clusterrun.scheduler import Scheduler, SlurmCommands
from clusterrun.scheduler.slurm.nodes import Partition
from clusterrun.scheduler.slurm.sbatch import Estimate, No, Silence, Start, estimate_start
from clusterrun.submit import plan as planning
from clusterrun.submit.request import Request, SubmitArgs

AUTO = "auto"
MOST_QUESTIONS = 12
#: Seconds for one query, and for all of them: a busy controller must not keep the user waiting.
ONE, ALL = 15.0, 60.0


@dataclass(frozen=True, slots=True)
class ShapeEstimate:
    """Slurm's estimate for one shape in one partition, and the command to submit it.

    ``given_time`` is the partition's default time limit in seconds if the job requests none. ``preemption`` is set if
    the partition's jobs can be preempted.
    """

    shape: Shape
    partition: str
    estimate: Estimate
    command: str
    given_time: int | None = None
    preemption: Preemption | None = None

    @property
    def at(self) -> float:
        """Return the start time as a sort key; an unknown one sorts last."""
        at = self.estimate.at if isinstance(self.estimate, Start) else None
        return float("inf") if at is None else at

    @property
    def is_now(self) -> bool:
        return isinstance(self.estimate, Start) and format_when(self.estimate.at, time.time()) == "now"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEstimates:
    """The estimates, soonest first, then refusals. ``no`` are (shape, partition, reason) that were not queried.

    ``unasked`` counts queries that were left out, because they were too many or Slurm did not respond.
    ``exceeded_limits`` are accounting limits, which Slurm's estimates ignore.
    """

    shape: Shape
    need: Need
    tried: tuple[ShapeEstimate, ...]
    no: tuple[tuple[Shape, str, str], ...]
    unasked: int = 0
    dependency: str = ""
    exceeded_limits: tuple[str, ...] = ()

    @property
    def starts(self) -> list[ShapeEstimate]:
        return [t for t in self.tried if isinstance(t.estimate, Start)]

    @property
    def silence(self) -> str:
        """Return the error if Slurm did not respond, else ""."""
        return next((t.estimate.words for t in self.tried if isinstance(t.estimate, Silence)), "")


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


def soonest(context: EstimateContext, seen: ClusterSnapshot) -> StartEstimates:
    """Estimate the requested shape and similar ones, in the given partitions or in all.

    Raises RequestError for an unknown partition.
    """
    typed = context.asked.flags.get("partition")
    partitions = find_partitions(seen, str(typed.value)) if typed else list(seen.partitions)
    spec = context.plan({}).spec
    shape, need = shape_of(spec)
    most = max((node_capacity(node, need) for node in seen.nodes), default=shape.each)
    found = _estimate(context, seen, spec, shapes_alike(shape, most), partitions, first_now=False)
    exceeded = exceeded_limits(seen, spec, [start.partition for start in found.starts])
    return replace(found, exceeded_limits=tuple(limit.line for limit in exceeded))


def choose_partition(context: EstimateContext, user: str) -> Request:
    """Return the request with ``partition = auto`` replaced by the partition with the earliest start.

    A partition that is named ``auto`` is used itself. Raises RequestError or Refused if no partition accepts the job,
    SchedulerError if Slurm does not respond.
    """
    request, value = context.request, context.request.values.get("partition")
    if value is None or value.value != AUTO or (context.scheduler is not None and context.scheduler.slurm is None):
        return request
    if context.scheduler is None:  # the script is rendered on another machine
        line = "--partition auto: cannot choose a partition without Slurm, so the script does not set one"
        values = {name: v for name, v in request.values.items() if name != "partition"}
        return replace(request, values=values, notices=[*request.notices, line])
    seen = load_snapshot(context.slurm, user, limits=False)
    if any(p.name == AUTO for p in seen.partitions):
        return request
    spec = context.plan({}).spec
    short = _shorter_time_limits(seen, spec)
    partitions = [p for p in seen.partitions if p.name not in short]
    found = _estimate(context, seen, spec, [shape_of(spec)[0]], partitions, first_now=True)
    found = replace(found, no=(*found.no, *((found.shape, name, why) for name, why in short.items())))
    if not found.starts:
        reasons = "\n".join(f"{where}: {why}" for where, why in refusals(found))
        if found.silence:
            raise SchedulerError(
                "Slurm did not return all start estimates, so nothing was submitted",
                detail=reasons, hint="try again, or choose a partition with --partition NAME",
            )  # fmt: skip
        error = Refused if any(isinstance(t.estimate, No) for t in found.tried) else RequestError
        raise error("no partition accepts this job", detail=reasons, hint="run `clusterrun free` to see the partitions")
    best = found.starts[0]
    assert isinstance(best.estimate, Start)
    start = f"earliest start (Slurm's estimate): {format_when(best.estimate.at, time.time())}"
    line = f"partition {best.partition}: {start} ({plural(len(found.tried), 'partition')} checked)"
    if best.given_time:
        line += f"; without --time, the job gets the partition's default time limit: {format_duration(best.given_time)}"
    if best.preemption:
        line += f"; {best.preemption.sentence}"
    chosen = Value(best.partition, f"{value.source}: auto, {start}")
    return replace(request, values={**request.values, "partition": chosen}, notices=[*request.notices, line])


def _shorter_time_limits(seen: ClusterSnapshot, spec: JobSpec) -> dict[str, str]:
    """Return the partitions where a job without --time gets less time than in the default partition, and why."""
    least = next((p.given_time for p in seen.partitions if p.default), 0)
    given = {} if "time" in spec.sources else {p.name: p.given_time for p in seen.partitions}
    return {
        name: f"without --time, the time limit would be only {format_duration(seconds)}"
        for name, seconds in given.items()
        if seconds is not None and (least is None or seconds < least)
    }


def refusals(found: StartEstimates) -> list[tuple[str, str]]:
    """Return the partitions and shapes that were rejected, by reason: ``gpu, low (2x4, 1x8)`` and the reason."""
    places: dict[str, dict[str, list[str]]] = {}
    refused = [(t.shape, t.partition, t.estimate.words) for t in found.tried if not isinstance(t.estimate, Start)]
    for shape, partition, why in [*refused, *found.no]:
        places.setdefault(why, {}).setdefault(partition, []).append(str(shape))
    many = len({t.shape for t in found.tried} | {shape for shape, _, _ in found.no}) > 1
    lines = []
    for why, by_partition in places.items():
        by_shapes: dict[str, list[str]] = {}
        for partition, shapes in by_partition.items():
            by_shapes.setdefault(", ".join(dict.fromkeys(shapes)), []).append(partition)
        where = "; ".join(f"{', '.join(p)}{f' ({s})' if many else ''}" for s, p in by_shapes.items())
        lines.append((where, why))
    return lines


def _estimate(
    context: EstimateContext, seen: ClusterSnapshot, spec: JobSpec, shapes: Sequence[Shape],
    partitions: Sequence[Partition], *, first_now: bool,
) -> StartEstimates:  # fmt: skip
    """Estimate, most promising first; with ``first_now`` stop at the first partition where the job starts now.

    After a partition whose jobs can be preempted, those without preemption are still tried.
    """
    requested, need = shape_of(spec)
    own = spec.directive("partition")
    candidates: list[tuple[tuple[bool, int, bool, bool, int], Shape, Partition]] = []
    no: list[tuple[Shape, str, str]] = []
    for number, shape in enumerate(shapes):
        for partition in partitions:
            why = why_never(seen, partition, spec, shape, need)
            if why:
                no.append((shape, partition.name, why))
                continue
            now = has_room_now(seen, partition, shape, need)
            mine = partition.name == own or (own in ("", AUTO) and partition.default)
            size = sum(node_capacity(node, need) for node in seen.nodes_of(partition.name))
            preempted = partition.name in seen.preempted
            candidates.append(((not now, number, preempted, not mine, -size), shape, partition))
    tried: list[ShapeEstimate] = []
    began = context.now()
    for _, shape, partition in sorted(candidates, key=lambda candidate: candidate[0]):
        left = ALL - (context.now() - began)
        silent = bool(tried) and isinstance(tried[-1].estimate, Silence)
        if len(tried) >= MOST_QUESTIONS or left <= 0 or silent:
            break
        preemption = seen.preempted.get(partition.name)
        if first_now and preemption and any(t.is_now for t in tried):
            continue
        changed = reshape_values(context.request.values, requested, shape, need)
        if changed is None:
            no.append((shape, partition.name, "the job has a fixed number of nodes or ranks"))
            continue
        changed["partition"] = Value(partition.name, AUTO)
        plan = context.plan(changed)
        estimate = estimate_start(context.slurm, plan.submission, plan.script, timeout=min(ONE, left))
        command = submit_command(context.asked, changed)
        given = None if "time" in context.request.values else partition.given_time
        tried.append(ShapeEstimate(shape, partition.name, estimate, command, given, preemption))
        if first_now and preemption is None and tried[-1].is_now:
            break
    tried.sort(key=lambda t: (0.0 if t.is_now else t.at, t.preemption is not None, t.at, t.shape != requested))
    known = len(tried) + len(no)
    return StartEstimates(
        shape=requested, need=need, tried=tuple(tried), no=tuple(no),
        unasked=0 if first_now else max(0, len(shapes) * len(partitions) - known),
        dependency=spec.directive("dependency"),
    )  # fmt: skip


def find_partitions(seen: ClusterSnapshot, names: str) -> list[Partition]:
    """Return the partitions of a ``--partition`` list; raises RequestError with the nearest name."""
    known = {p.name: p for p in seen.partitions}
    if names == AUTO and AUTO not in known:
        return list(seen.partitions)
    wanted = [name for name in names.split(",") if name]
    wrong = next((name for name in wanted if name not in known), None)
    if wrong is not None or not wanted:
        hint = f"{nearest(wrong or '', list(known))} partitions: {', '.join(known)}".strip()
        raise RequestError(f"no such partition: {wrong or names!r}", hint=hint)
    return [known[name] for name in wanted]
