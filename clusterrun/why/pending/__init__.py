"""Explain why a job is pending: the reason and its meaning, evidence, what to do, the jobs ahead, the estimated start.

:mod:`queries` runs a few Slurm commands in parallel. The evidence is computed from their answers by pure functions, and
the report names what was not available. A local job is explained from its own files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from clusterrun.base.errors import SchedulerError
from clusterrun.base.job import JobStatus
from clusterrun.base.units import clause, format_duration, format_time_and_offset, plural
from clusterrun.scheduler import Scheduler
from clusterrun.scheduler.local.jobfiles import Job, Unreadable, job_folders, read_job, read_state, read_status
from clusterrun.scheduler.slurm.reasons import Reason, Starts, find_reason
from clusterrun.scheduler.slurm.squeue import Queued
from clusterrun.state.reconcile import RunState
from clusterrun.why.pending import dependencies, limits, nodes, partition_rules, queue_position, running_job
from clusterrun.why.pending.facts import Finding, PendingFacts
from clusterrun.why.pending.queries import query_facts
from clusterrun.why.pending.queue_position import Ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReport:
    """Why a job is pending. ``reason`` is the row of ``slurm_reason``, None for an unknown one.

    ``start`` is Slurm's estimate in seconds since the epoch, None without one.
    """

    slurm_reason: str
    reason: Reason | None
    meaning: str
    here: tuple[str, ...] = ()
    do: tuple[str, ...] = ()
    starts: Starts | None = None
    ahead: Ahead | None = None
    ahead_line: str = ""
    start: int | None = None
    start_nodes: str = ""
    start_line: str = ""
    unseen: tuple[str, ...] = ()

    def facts(self) -> list[tuple[str, Sequence[str]]]:
        """Return the parts that ``why`` shows: name and lines of each."""
        means = self.meaning
        if self.starts is Starts.NEVER:
            means += " The job will never start unless you change it."
        elif self.starts:
            means += f" The job starts {self.starts.value}."
        return [
            ("reason", (self.slurm_reason or "none given",)),
            ("means", (means,)),
            ("here", self.here),
            ("do", self.do),
            ("ahead", tuple(filter(None, [self.ahead_line]))),
            ("start", tuple(filter(None, [self.start_line]))),
            ("unknown", self.unseen),
        ]

    def json(self) -> dict[str, Any]:
        """Return the values for ``--json``; times in seconds since the epoch."""
        row = self.reason
        word, meaning, source = (row.word, row.meaning, row.source) if row else (None, None, None)
        return {
            "reason": self.slurm_reason,
            "word": word,
            "meaning": meaning,
            "source": source,
            "starts": self.starts.name.lower() if self.starts else None,
            "here": list(self.here),
            "do": list(self.do),
            "ahead": asdict(self.ahead) if self.ahead else None,
            "estimated_start": self.start,
            "estimated_nodes": self.start_nodes or None,
            "not_seen": list(self.unseen),
        }


def explain(scheduler: Scheduler, state: RunState, now: float | None = None, *, array: str = "") -> PendingReport:
    """Return why a job is pending. For a task that stands for a whole array, ``array`` is the id for the commands.

    Raises SchedulerError without a query if the state is old because Slurm did not respond, as the reason may
    have changed since.
    If Slurm stops answering later, the report only lacks some evidence.
    """
    now, job = time.time() if now is None else now, state.status
    if scheduler.slurm is None:
        return _local_report(scheduler, job)
    if state.as_of is not None:
        last = f"{job.state}{clause(job.reason, ' ({})')} {format_duration(now - state.as_of)} ago"
        raise SchedulerError(
            f"cannot tell why job {job.id} is pending: Slurm did not respond (last known state: {last})",
            detail=state.note, hint="run `scontrol ping`, then try again",
        )  # fmt: skip
    facts = query_facts(scheduler.slurm, job, now)
    return explain_facts(replace(facts, id=array) if array else facts, job)


def running(state: RunState) -> list[str]:
    """Describe a job that is neither pending nor ended, one sentence per line."""
    return running_job.describe_running(state.status, state.record, time.time())


def _local_report(scheduler: Scheduler, job: JobStatus) -> PendingReport:
    assert scheduler.local is not None
    reason, found = find_reason(job.reason), explain_local(scheduler.local.folder, job, scheduler.local.devices)
    report = PendingReport(
        slurm_reason=job.reason,
        reason=reason,
        meaning="The job has just been submitted or is about to start.",
        here=found.here,
        do=found.do,
        starts=found.starts,
        unseen=found.unseen,
    )
    if reason is None:
        return report
    return replace(report, meaning=reason.meaning, starts=found.starts or reason.starts)


def explain_local(root: Path, job: JobStatus, seen: Sequence[str]) -> Finding:
    """Return the evidence on a local job, from the folder of the local jobs and this machine's visible devices."""
    try:
        request = read_job(root / str(job.id))
    except (OSError, Unreadable):
        request = None
    if request is None:
        return Finding(unseen=("the job's resource request",))
    if job.reason.startswith("Dependency"):
        return _local_dependency(root, job, request)
    return _devices(root, job, request, seen) if job.reason == "Resources" else Finding()


def _local_dependency(root: Path, job: JobStatus, request: Job) -> Finding:
    statuses = _statuses(root)
    queue = [Queued(str(s.id), -1, s.state, s.reason, left=_left(s)) for s in statuses if not s.is_over]
    lines, never = dependencies.describe_conditions(request.dependency, queue, statuses)
    give_up = f"clusterrun cancel {job.id}"
    if never:
        return Finding(tuple(lines), (give_up,), starts=Starts.NEVER)
    return Finding(tuple(lines), (f"wait, or cancel the job: `{give_up}`",))


def _devices(root: Path, job: JobStatus, request: Job, seen: Sequence[str]) -> Finding:
    has = f"job {request.in_job} has {len(request.slots)}" if request.in_job else f"this machine has {len(seen)}"
    here = [f"the job requests {plural(request.nodes * request.gpus_per_node, 'GPU')}; {has}"]
    holders = []
    for folder in job_folders(root):
        try:
            other, state = read_job(folder), read_state(folder)
        except Unreadable:
            continue
        is_alike = other is not None and other.in_job == request.in_job
        if is_alike and state is not None and state.devices and state.state in ("RUNNING", "COMPLETING"):
            holders.append(f"{_names(state.devices, request)} (job {folder.name})")
    here.append(f"GPUs in use by local jobs: {'; '.join(holders)}" if holders else "none of your local jobs uses a GPU")
    return Finding(tuple(here), ("wait, or use `clusterrun cancel` to end a job that uses GPUs",))


def _names(devices: Sequence[str], request: Job) -> str:
    """Return devices in words: ``0, 1``; those of a Slurm job, which chooses the devices itself, by node."""
    if not request.in_job:
        return ", ".join(devices)
    nodes = Counter(device.split("/")[1] for device in devices)
    return ", ".join(f"{count} on {node}" for node, count in nodes.items())


def _statuses(root: Path) -> list[JobStatus]:
    try:
        return list(filter(None, map(read_status, job_folders(root))))
    except OSError:
        return []


def _left(job: JobStatus) -> int | None:
    if job.time_limit is None or job.elapsed is None:
        return None
    return max(0, job.time_limit - job.elapsed)


def explain_facts(facts: PendingFacts, job: JobStatus) -> PendingReport:
    """Return the report on a job from these facts: the pure part of :func:`explain`."""
    found = _evidence(facts)
    do, starts = found.do, found.starts
    if facts.reason is not None:
        do, starts = do or (facts.reason.what_to_do(facts.id),), starts or facts.reason.starts
    unseen = [*facts.unseen, *found.unseen]
    if job.source == "sacct":
        unseen.append("the job's state in the queue (only accounting shows the job, and accounting may lag behind)")
    ahead = queue_position.find_ahead(facts)
    start, start_nodes, start_line = _start(facts, starts)
    return PendingReport(
        slurm_reason=job.reason,
        reason=facts.reason,
        meaning=_meaning(facts, job),
        here=found.here,
        do=do,
        starts=starts,
        ahead=ahead,
        ahead_line=ahead.sentence(facts.partition_text) if ahead else "",
        start=start,
        start_nodes=start_nodes,
        start_line=start_line,
        unseen=tuple(dict.fromkeys(unseen)),
    )


def _meaning(facts: PendingFacts, job: JobStatus) -> str:
    if facts.reason is not None:
        return facts.reason.meaning
    if job.reason:
        return "clusterrun does not recognize this reason."
    if job.source == "sacct":
        return "The job's state comes from accounting (sacct), which does not record reasons."
    return "Slurm has not given a reason yet."


def _evidence(facts: PendingFacts) -> Finding:
    found = Finding()
    for evidence in _EVIDENCE.get("limit" if facts.limit else facts.word, _ANY):
        found += evidence(facts)
    return found


def _start(facts: PendingFacts, starts: Starts | None) -> tuple[int | None, str, str]:
    """Return Slurm's estimated start, its nodes, and both as text; that of a blocked job may be the current time."""
    if not facts.job:
        return None, "", ""
    if starts not in (None, Starts.ALONE):
        return None, "", "Slurm has no estimate of the start time while the job cannot start"
    at, nodes = facts.epoch("StartTime"), facts.job.get("SchedNodeList", "")
    if at is None:
        return None, nodes, "Slurm has no estimate of the start time"
    expects = "expected" if at < facts.now else "expects"
    where = clause(nodes, " on {}")
    return at, nodes, f"Slurm {expects} the job to start{where} at {format_time_and_offset(at, facts.now)}"


def _dependency(facts: PendingFacts) -> Finding:
    text = facts.job.get("Dependency", "")
    if not text:
        return Finding(unseen=("the job's dependency",))
    lines, never = dependencies.describe_conditions(text, facts.rows, facts.past or ())
    found = Finding(tuple(lines) or (f"the job is waiting for {text}",))
    if never:
        found += Finding(do=(facts.update("Dependency"), f"clusterrun cancel {facts.id}"), starts=Starts.NEVER)
    return found


def _misfit(facts: PendingFacts) -> Finding:
    """Return the partition's rules that the job breaks; without one, it waits for nodes to return to service."""
    broken = partition_rules.broken_rules(facts)
    if broken.here:
        return broken
    return broken + nodes.check_named_nodes(facts) + nodes.free_room(facts) + Finding(starts=Starts.ALONE)


#: Reason word -> the evidence, in the order of the report. A job without a known reason gets ``_ANY``.
_ANY = (nodes.check_named_nodes, nodes.free_room, queue_position.next_ends)
_EVIDENCE: dict[str, tuple[Callable[[PendingFacts], Finding], ...]] = {
    "limit": (limits.limit_evidence,),
    "Priority": (queue_position.priority_parts, nodes.free_room, queue_position.next_ends, queue_position.backfill_gap),
    "BeginTime": (queue_position.earliest_start,),
    "JobArrayTaskLimit": (queue_position.array_throttle,),
    "Licenses": (queue_position.license_use,),
    "PartitionNodeLimit": (_misfit,),
    "ReqNodeNotAvail": (nodes.check_named_nodes, nodes.reservations, nodes.free_room),
    "BadConstraints": (partition_rules.broken_rules, nodes.free_room),
    **dict.fromkeys(("Dependency", "DependencyNeverSatisfied"), (_dependency,)),
    **dict.fromkeys(("JobHeldUser", "JobHeldAdmin"), (nodes.drained_at_launch, queue_position.describe_hold)),
    **dict.fromkeys(("Reservation", "ReservationDeleted"), (nodes.reservations,)),
    **dict.fromkeys(("PartitionTimeLimit", "PartitionConfig", "PartitionDown", "PartitionInactive", "MaxMemPerLimit",
                     "AccountNotAllowed", "QOSNotAllowed"), (partition_rules.broken_rules,)),
    **dict.fromkeys(("JobHoldMaxRequeue", "InvalidAccount", "InvalidQOS"), ()),
}  # fmt: skip
