"""Explain why a job is pending: Slurm's reason, its meaning, the evidence, what to do, who is ahead, when it starts.

Slurm is asked a few commands at once (:mod:`asking`); every piece of evidence is a pure function of the answers, and
what could not be seen is said. A local job waits for a dependency or for devices, and its own files tell.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from clusterrun.errors import SchedulerError
from clusterrun.job import JobStatus
from clusterrun.reasons import Reason, Starts
from clusterrun.scheduler import LocalJobs, Scheduler
from clusterrun.state.reconcile import RunState
from clusterrun.terminal.units import format_duration, format_time_and_offset
from clusterrun.why.pending import dependencies, limits, local, nodes, partition_rules, queue_position, running_job
from clusterrun.why.pending.facts import Finding, PendingFacts
from clusterrun.why.pending.queries import query_facts
from clusterrun.why.pending.queue_position import Ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReport:
    """Why one job is pending. ``said`` is Slurm's own reason; ``reason`` is its row, None for an unknown one.

    ``start`` is Slurm's estimate in seconds since the epoch, None where it has none.
    """

    id: str
    said: str
    reason: Reason | None
    here: tuple[str, ...] = ()
    do: tuple[str, ...] = ()
    starts: Starts | None = None
    ahead: Ahead | None = None
    ahead_line: str = ""
    start: int | None = None
    start_nodes: str = ""
    start_line: str = ""
    unseen: tuple[str, ...] = ()
    is_local: bool = False
    from_accounting: bool = False

    @property
    def meaning(self) -> str:
        """Return what the reason means."""
        if self.reason is not None:
            return self.reason.meaning
        if self.is_local:
            return "It has just been submitted or is about to start."
        if not self.said and self.from_accounting:
            return "Slurm gives no reason yet; only accounting shows that the job is pending."
        return "Slurm gives no reason yet." if not self.said else "clusterrun does not know this reason."

    def facts(self) -> list[tuple[str, Sequence[str]]]:
        """Return what ``why`` shows: each part's name and its lines."""
        starts = f"It starts {self.starts.value}." if self.starts else ""
        if self.starts is Starts.NEVER:
            starts = "It can never start as it is."
        return [
            ("reason", (self.said or "none given",)),
            ("means", (f"{self.meaning} {starts}".strip(),)),
            ("here", self.here),
            ("do", self.do),
            ("ahead", (self.ahead_line,) if self.ahead_line else ()),
            ("start", (self.start_line,) if self.start_line else ()),
            ("unknown", self.unseen),
        ]

    def json(self) -> dict[str, Any]:
        """Return the values for ``--json``; times in seconds since the epoch."""
        row = self.reason
        return {
            "reason": self.said,
            "word": row.word if row else None,
            "meaning": row.meaning if row else None,
            "source": row.source if row else None,
            "starts": self.starts.name.lower() if self.starts else None,
            "here": list(self.here),
            "do": list(self.do),
            "ahead": asdict(self.ahead) if self.ahead else None,
            "estimated_start": self.start,
            "estimated_nodes": self.start_nodes or None,
            "not_seen": list(self.unseen),
        }


def explain(scheduler: Scheduler, state: RunState, now: float | None = None, *, array: str = "") -> PendingReport:
    """Return why a job is pending, from the scheduler's answers.

    Raises SchedulerError, and asks nothing, where Slurm was silent a moment ago and the state is an older one: what
    was true then may not be what the job waits for now. A silence that begins later hides only what it hides.
    ``array`` is the id of the whole array where the job is a task that stands for all of it: commands are for that.
    """
    now = time.time() if now is None else now
    if scheduler.slurm is not None:
        if state.as_of is not None:
            raise _silence(state, now)
        facts = query_facts(scheduler.slurm, state.status, now)
        return explain_facts(replace(facts, id=array) if array else facts, state.status)
    assert scheduler.local is not None
    return _local(scheduler.local, state.status)


def _silence(state: RunState, now: float) -> SchedulerError:
    job = state.status
    last = f"{job.state}{f' ({job.reason})' if job.reason else ''} {format_duration(now - (state.as_of or now))} ago"
    return SchedulerError(
        f"Slurm did not answer, so the reason why job {job.id} is pending is unknown (last known: {last})",
        detail=state.note, hint="check `scontrol ping`, then try again",
    )  # fmt: skip


def running(state: RunState, now: float | None = None) -> list[str]:
    """Describe a job that is neither pending nor ended, one sentence per line."""
    return running_job.describe_running(state.status, state.record, time.time() if now is None else now)


def _local(jobs: LocalJobs, job: JobStatus) -> PendingReport:
    """Explain a local job from its own files."""
    reason, found = local.explain_local(jobs.folder, job, jobs.devices)
    return PendingReport(
        id=str(job.id),
        said=job.reason,
        reason=reason,
        here=found.here,
        do=found.do,
        starts=found.starts or (reason.starts if reason else None),
        unseen=found.unseen,
        is_local=True,
    )


def explain_facts(facts: PendingFacts, job: JobStatus) -> PendingReport:
    """Return the report on a job from these facts: the pure part of :func:`explain`."""
    found = Finding()
    for look in _EVIDENCE.get(_word(facts), _ANY):
        found += look(facts)
    row = facts.reason
    starts = found.starts or (row.starts if row else None)
    do = found.do or ((row.what_to_do(facts.id),) if row else ())
    ahead = queue_position.find_ahead(facts)
    return PendingReport(
        id=str(job.id),
        said=job.reason,
        reason=row,
        here=found.here,
        do=do,
        starts=starts,
        ahead=ahead,
        ahead_line=ahead.sentence(facts.partition_names) if ahead else "",
        start=facts.epoch("StartTime") if _counts(starts) else None,
        start_nodes=facts.job.get("SchedNodeList", "") if _counts(starts) else "",
        start_line=_start(facts, starts) if facts.job else "",
        from_accounting=job.source == "sacct",
        unseen=tuple(dict.fromkeys((*facts.unseen, *found.unseen, *_accounting_note(job)))),
    )


def _counts(starts: Starts | None) -> bool:
    """Return whether Slurm's estimate is meaningful: for a blocked job it may be the current time."""
    return starts in (None, Starts.ALONE)


def _start(facts: PendingFacts, starts: Starts | None) -> str:
    """Return Slurm's estimated start as text."""
    at, nodes = facts.epoch("StartTime"), facts.job.get("SchedNodeList", "")
    if at is None or not _counts(starts):
        return "Slurm has no estimate" + ("" if starts is Starts.ALONE else " for a job that cannot start yet")
    late = ", which has passed" if at < facts.now else ""
    return f"Slurm expects {format_time_and_offset(at, facts.now)}{late}{f' on {nodes}' if nodes else ''}"


def _accounting_note(job: JobStatus) -> tuple[str, ...]:
    return ("the job in the queue (only accounting shows it, and accounting lags)",) if job.source == "sacct" else ()


def _word(facts: PendingFacts) -> str:
    row = facts.reason
    return "limit" if row and row.limit else row.word if row else ""


def _dependency(facts: PendingFacts) -> Finding:
    text = facts.job.get("Dependency", "")
    if not text:
        return Finding(unseen=("the condition it waits for",))
    lines, never = dependencies.describe_conditions(text, facts.queue, facts.past)
    do = (f"scontrol update JobId={facts.id} Dependency=", f"clusterrun cancel {facts.id}") if never else ()
    return Finding(tuple(lines) or (f"it waits for {text}",), do, starts=Starts.NEVER if never else None)


def _misfit(facts: PendingFacts) -> Finding:
    """Return the partition's rules that the job breaks; if it breaks none, nodes are out that will come back."""
    broken = partition_rules.broken_rules(facts)
    if broken.here:
        return broken
    return broken + nodes.check_named_nodes(facts) + nodes.free_room(facts) + Finding(starts=Starts.ALONE)


#: Reason word -> where to look, in the order of the report. A job without a known reason gets ``_ANY``.
_ANY: tuple[Callable[[PendingFacts], Finding], ...] = (
    nodes.check_named_nodes,
    nodes.free_room,
    queue_position.next_ends,
)
_EVIDENCE: dict[str, tuple[Callable[[PendingFacts], Finding], ...]] = {
    "limit": (limits.limit_evidence,),
    "Priority": (queue_position.priority_parts, nodes.free_room, queue_position.next_ends, queue_position.backfill_gap),
    "Dependency": (_dependency,),
    "DependencyNeverSatisfied": (_dependency,),
    "BeginTime": (queue_position.earliest_start,),
    "JobHeldUser": (queue_position.describe_hold,),
    "JobHeldAdmin": (queue_position.describe_hold,),
    "JobArrayTaskLimit": (queue_position.array_throttle,),
    "Licenses": (queue_position.license_use,),
    "PartitionTimeLimit": (partition_rules.broken_rules,),
    "PartitionNodeLimit": (_misfit,),
    "PartitionConfig": (partition_rules.broken_rules,),
    "PartitionDown": (partition_rules.broken_rules,),
    "PartitionInactive": (partition_rules.broken_rules,),
    "Reservation": (nodes.reservations,),
    "ReservationDeleted": (nodes.reservations,),
    "ReqNodeNotAvail": (nodes.check_named_nodes, nodes.reservations, nodes.free_room),
    "BadConstraints": (partition_rules.broken_rules, nodes.free_room),
    "MaxMemPerLimit": (partition_rules.broken_rules,),
    "AccountNotAllowed": (partition_rules.broken_rules,),
    "QOSNotAllowed": (partition_rules.broken_rules,),
    **dict.fromkeys(("JobHoldMaxRequeue", "InvalidAccount", "InvalidQOS"), ()),
}
