"""Estimate where a job would start soonest with ``sbatch --test-only`` per partition and shape.

The job goes through the planning that ``submit`` uses, so the answer is about the job one would submit. No job is made
and nothing is written. Slurm is asked a bounded number of times, one after the other, the most promising first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clusterrun.config.profiles import nearest
from clusterrun.errors import Refused, RequestError, SchedulerError
from clusterrun.free.account_limits import exceeded_limits
from clusterrun.free.fits import check_fit, node_capacity
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
from clusterrun.terminal.units import format_duration, format_when, plural

AUTO = "auto"
MOST_QUESTIONS = 12
#: Seconds for one question, and for all of them: a busy controller must not keep anybody at a prompt.
ONE, ALL = 15.0, 60.0


@dataclass(frozen=True, slots=True)
class ShapeEstimate:
    """One shape in one partition, Slurm's estimate, and the command to submit it.

    ``given_time`` is the time limit in seconds that a job gets there which asks for none, as this one does.
    ``preemption`` is set where jobs have to leave that partition for those of others.
    """

    shape: Shape
    partition: str
    said: Estimate
    command: str
    given_time: int | None = None
    preemption: Preemption | None = None

    @property
    def at(self) -> float:
        """Return the start time as a sort key; an unknown one sorts last."""
        return float("inf") if not isinstance(self.said, Start) or self.said.at is None else self.said.at


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEstimates:
    """What came of it: ``tried`` soonest first, then what Slurm refused; ``no`` are (shape, partition, why) not asked.

    ``unasked`` counts questions that were left out, being too many or after a silence. ``beyond`` are limits of
    accounting in the job's way, which Slurm's answers leave out.
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
        return [t for t in self.tried if isinstance(t.said, Start)]

    @property
    def silence(self) -> str:
        """Return how Slurm failed to answer, empty if it did not fail."""
        return next((t.said.words for t in self.tried if isinstance(t.said, Silence)), "")


@dataclass(frozen=True, slots=True)
class EstimateContext:
    """What an estimate needs: the request, how it is planned, and the scheduler."""

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
        """Return the plan of the job with some values changed, as ``submit`` would make it, without a name."""
        request = replace(self.request, values={**self.request.values, **changed})
        return planning.plan(request, self.scheduler, self.has_gpus, self.here, named=False)


def soonest(context: EstimateContext, seen: ClusterSnapshot) -> StartEstimates:
    """Estimate the requested shape and similar ones, in the given partitions or in all.

    Raises RequestError for a partition that is not there.
    """
    typed = context.asked.flags.get("partition")
    partitions = find_partitions(seen, str(typed.value)) if typed else list(seen.partitions)
    spec = context.plan({}).spec
    shape, need = shape_of(spec)
    most = max((node_capacity(node, need) for node in seen.nodes), default=shape.each)
    found = _ask(context, seen, spec, shapes_alike(shape, most), partitions, first_now=False)
    gpus = shape.nodes * shape.each if need.gpus else 0
    exceeded = exceeded_limits(seen, spec, need, gpus, (t.partition for t in found.starts))
    return replace(found, exceeded_limits=tuple(exceeded))


def choose_partition(context: EstimateContext, user: str) -> Request:
    """Return the request with ``partition = auto`` replaced by the partition with the earliest start.

    Where a partition is called ``auto``, that one is meant. Raises RequestError or Refused where none takes the job,
    SchedulerError where Slurm did not answer.
    """
    request, value = context.request, context.request.values.get("partition")
    if value is None or value.value != AUTO or (context.scheduler is not None and context.scheduler.slurm is None):
        return request
    if context.scheduler is None:  # a script rendered far from the cluster
        line = "partition auto: Slurm is not available here to choose one, so the script names none"
        values = {name: v for name, v in request.values.items() if name != "partition"}
        return replace(request, values=values, notices=[*request.notices, line])
    seen = load_snapshot(context.slurm, user, limits=False)
    if any(p.name == AUTO for p in seen.partitions):
        return request
    spec = context.plan({}).spec
    partitions, short = _as_long(seen, spec)
    found = _ask(context, seen, spec, [shape_of(spec)[0]], partitions, first_now=True)
    found = replace(found, no=(*found.no, *((found.shape, p.name, why) for p, why in short)))
    if not found.starts:
        said = "\n".join(f"{where}: {why}" for where, why in refusals(found))
        if found.silence:
            raise SchedulerError(
                "Slurm did not estimate where the job would start, so nothing was submitted",
                detail=said, hint="try again, or name one: --partition NAME",
            )  # fmt: skip
        error = Refused if any(isinstance(t.said, No) for t in found.tried) else RequestError
        raise error("no partition accepts this job", detail=said, hint="run `clusterrun free` to see the partitions")
    best = found.starts[0]
    assert isinstance(best.said, Start)
    words = format_when(best.said.at, time.time())
    asked = plural(len(found.tried), "partition")
    line = f"partition {best.partition}: earliest start by Slurm's estimate: {words} ({asked} checked)"
    if best.given_time:
        line += f"; without --time its time limit there is {format_duration(best.given_time)}"
    if best.preemption:
        line += f"; {best.preemption.sentence}"
    placed = Value(best.partition, f"{value.source}: auto, earliest start by Slurm's estimate: {words}")
    return replace(request, values={**request.values, "partition": placed}, notices=[*request.notices, line])


def _as_long(seen: ClusterSnapshot, spec: JobSpec) -> tuple[list[Partition], list[tuple[Partition, str]]]:
    """Return the partitions that may be chosen for a job, and the others with the reason.

    A job without --time must not land where it gets less time than in the cluster's default partition.
    """
    least = next((p.given_time for p in seen.partitions if p.default), 0)
    chosen, short = [], []
    for partition in seen.partitions:
        given = partition.given_time
        if "time" not in spec.sources and given is not None and (least is None or given < least):
            short.append((partition, f"without --time its time limit there is only {format_duration(given)}"))
        else:
            chosen.append(partition)
    return chosen, short


def refusals(found: StartEstimates) -> list[tuple[str, str]]:
    """Return the partitions and shapes that were rejected, by reason: ``gpu, low (2x4, 1x8)`` and the reason."""
    places: dict[str, dict[str, list[str]]] = {}
    refused = [(t.shape, t.partition, t.said.words) for t in found.tried if not isinstance(t.said, Start)]
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


def _ask(
    context: EstimateContext, seen: ClusterSnapshot, spec: JobSpec, shapes: Sequence[Shape],
    partitions: Sequence[Partition], *, first_now: bool,
) -> StartEstimates:  # fmt: skip
    """Estimate, most promising first; with ``first_now`` stop at the first that starts now.

    One where the job may have to leave for others is not that good: those where it may stay are still asked.
    """
    asked, need = shape_of(spec)
    own = spec.directive("partition")
    questions: list[tuple[tuple[bool, int, bool, bool, int], Shape, Partition]] = []
    no: list[tuple[Shape, str, str]] = []
    for number, shape in enumerate(shapes):
        for partition in partitions:
            why, now = check_fit(seen, partition, spec, shape, need)
            if why:
                no.append((shape, partition.name, why))
                continue
            mine = partition.name == own or (own in ("", AUTO) and partition.default)
            size = sum(node_capacity(node, need) for node in seen.nodes_of(partition.name))
            leaves = partition.name in seen.preempted
            questions.append(((not now, number, leaves, not mine, -size), shape, partition))
    tried: list[ShapeEstimate] = []
    began = context.now()
    questions.sort(key=lambda question: question[0])
    for _, shape, partition in questions:
        left = ALL - (context.now() - began)
        silent = bool(tried) and isinstance(tried[-1].said, Silence)
        if len(tried) >= MOST_QUESTIONS or left <= 0 or silent:
            break
        preemption = seen.preempted.get(partition.name)
        if first_now and preemption and any(_is_now(t) for t in tried):
            continue
        changed = reshape_values(context.request.values, asked, shape, need)
        if changed is None:
            no.append((shape, partition.name, "the job cannot take this shape: its nodes or ranks are fixed"))
            continue
        changed["partition"] = Value(partition.name, AUTO)
        plan = context.plan(changed)
        said = estimate_start(context.slurm, plan.submission, plan.script, timeout=min(ONE, left))
        given = None if "time" in context.request.values else partition.given_time
        tried.append(
            ShapeEstimate(shape, partition.name, said, submit_command(context.asked, changed), given, preemption)
        )
        if first_now and preemption is None and _is_now(tried[-1]):
            break
    tried.sort(key=lambda t: (0.0 if _is_now(t) else t.at, t.preemption is not None, t.at, t.shape != asked))
    known = len(tried) + len(no)
    return StartEstimates(
        shape=asked, need=need, tried=tuple(tried), no=tuple(no),
        unasked=0 if first_now else max(0, len(shapes) * len(partitions) - known),
        dependency=spec.directive("dependency"),
    )  # fmt: skip


def _is_now(tried: ShapeEstimate) -> bool:
    return isinstance(tried.said, Start) and format_when(tried.said.at, time.time()) == "now"


def find_partitions(seen: ClusterSnapshot, names: str) -> list[Partition]:
    """Return the partitions of a ``--partition`` list; raises RequestError with the nearest name."""
    known = {p.name: p for p in seen.partitions}
    if names == AUTO and AUTO not in known:
        return list(seen.partitions)
    wanted = [name for name in names.split(",") if name]
    wrong = next((name for name in wanted if name not in known), None)
    if wrong is not None or not wanted:
        hint = f"{nearest(wrong or '', list(known))} partitions: {', '.join(known)}".strip()
        raise RequestError(f"no partition {wrong or names!r} found", hint=hint)
    return [known[name] for name in wanted]
