"""Explain a job's place in the queue: jobs ahead, earliest start, holds, the array's %N. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from clusterrun.base.job import TERMINAL
from clusterrun.base.units import first_few, format_duration, format_time_and_offset, plural
from clusterrun.scheduler.slurm.reasons import find_reason
from clusterrun.scheduler.slurm.sprio import Priority
from clusterrun.scheduler.slurm.squeue import Queued
from clusterrun.scheduler.slurm.values import parse_int
from clusterrun.why.pending.facts import Finding, PendingFacts
from clusterrun.why.pending.nodes import has_room, shorter_limit_command

_SHOWN = 4
#: Reasons of jobs that wait only for resources or priority.
_COMPETING = frozenset({"", "None", "WaitingForScheduling", "Priority", "Resources"})
#: Reasons with which a job has a position in the queue.
_IN_LINE = frozenset({*_COMPETING, "ReqNodeNotAvail", "Reservation", "Licenses", "MpiPortsBusy", "NvidiaImexChannels"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """The visible jobs ahead of a job; an array counts as one.

    ``jobs`` wait in the same partition for resources or priority, ``others`` counts those that wait there for other
    reasons, ``elsewhere`` those in partitions of a higher tier on the same nodes.
    """

    jobs: tuple[str, ...] = ()
    others: int = 0
    elsewhere: tuple[tuple[str, int], ...] = ()

    def sentence(self, where: str) -> str:
        first = f"{plural(len(self.jobs), 'visible job')} in {where}"
        if self.jobs:
            first += f": {first_few(list(self.jobs))}"
        if self.others:
            first += f"; not counted: {plural(self.others, 'job')} pending for reasons other than priority or resources"
        for name, count in self.elsewhere:
            first += f"; also {plural(count, 'job')} in partition {name}, which has priority on the same nodes"
        return first


def find_ahead(facts: PendingFacts) -> Ahead | None:
    """Return the jobs with a higher priority, or with the same and an earlier id.

    None for a job that waits for something else, and if the queue is unknown.
    """
    if facts.queue is None or not facts.partition_names or (facts.reason and facts.reason.word not in _IN_LINE):
        return None
    mine = _own(facts)
    if mine is None or mine.priority == 0:
        return None
    waiting = [row for row in facts.queue if row.state == "PENDING" and row.raw != mine.raw and row.priority > 0]
    before = [row for row in waiting if (-row.priority, row.raw) < (-mine.priority, mine.raw)]
    here = [row for row in before if set(row.partitions) & set(facts.partition_names)]
    here.sort(key=lambda row: (-row.priority, row.raw))
    in_line = [row for row in here if _word(row) in _COMPETING]
    first = Counter(name for row in waiting if _word(row) in _COMPETING for name in row.partitions)
    elsewhere = tuple((name, first[name]) for name in _partitions_first(facts) if first[name])
    return Ahead(jobs=tuple(row.id for row in in_line), others=len(here) - len(in_line), elsewhere=elsewhere)


def _own(facts: PendingFacts) -> Queued | None:
    raw = facts.job.get("JobId", "")
    return next((row for row in facts.queue or () if str(row.raw) == raw), None)


def _word(row: Queued) -> str:
    found = find_reason(row.reason) if row.reason else None
    return found.word if found else row.reason


def _partitions_first(facts: PendingFacts) -> list[str]:
    """Return the partitions of a higher tier that share nodes with the job's."""
    tiers = [parse_int(p.get("PriorityTier", "")) or 0 for p in facts.own_partitions]
    if not tiers or facts.nodes is None:
        return []
    shared = _sharing(facts)
    others = [p for p in facts.partitions or () if p.get("PartitionName") in shared]
    return [p["PartitionName"] for p in others if (parse_int(p.get("PriorityTier", "")) or 0) > max(tiers)]


def _sharing(facts: PendingFacts) -> set[str]:
    """Return the other partitions that share nodes with the job's."""
    mine = set(facts.partition_names)
    return {name for node in facts.nodes or () if mine & set(node.partitions) for name in node.partitions} - mine


def priority_parts(facts: PendingFacts) -> Finding:
    """Return the job's priority factors beside those of the first job in line."""
    own = next((one for one in facts.priorities or () if str(one.job) == facts.job.get("JobId")), None)
    if own is None:
        return Finding()
    here = [f"the job's priority is {_made_of(own)}"]
    first = find_ahead(facts)
    others = [one for one in facts.priorities or () if first and str(one.job) in first.jobs[:1]]
    here += [f"job {one.job}, the first in line, has priority {_made_of(one)}" for one in others[:1]]
    return Finding(tuple(here))


def _made_of(one: Priority) -> str:
    named = ", ".join(f"{name} {value:.10g}" for name, value in one.parts)
    return f"{one.total:.10g}{f': {named}' if named else ''}"


def backfill_gap(facts: PendingFacts) -> Finding:
    """Return the time limit with which the job ends before the next job ahead is expected to start.

    Nothing without room for it now or an expected start: a user cannot raise the limit again.
    """
    before = find_ahead(facts)
    if before is None or before.elsewhere or not has_room(facts):
        return Finding()
    rows = facts.queue or ()
    starts = [(row.start, row.id) for row in rows if row.id in before.jobs and row.start and row.start > facts.now]
    command = shorter_limit_command(facts, min(starts)[0]) if starts else ""
    if not command:
        return Finding()
    why = f"so that the job ends before job {min(starts)[1]} is expected to start; you cannot raise the limit later"
    first = "wait; or, if the job needs less time, shorten its time limit so that it can start before the jobs ahead:"
    return Finding(do=(first, f"{command}, {why}"))


def next_ends(facts: PendingFacts) -> Finding:
    """Return the running jobs of the partition, or on the same nodes, that end first."""
    if facts.queue is None or not facts.partition_names:
        return Finding()
    mine, sharing = set(facts.partition_names), _sharing(facts)
    live = [r for r in facts.queue if r.state == "RUNNING"]
    own = [r for r in live if mine & set(r.partitions)]
    others = [r for r in live if not mine & set(r.partitions) and sharing & set(r.partitions)]
    where = facts.partition_text
    count = f"{plural(len(own), 'job')} running in {where}" if own else f"no job visible to you is running in {where}"
    if others:
        names = list(dict.fromkeys(name for r in others for name in r.partitions))
        count += f"; {plural(len(others), 'job')} running in partition {first_few(names)} (same nodes)"
    timed = sorted((r for r in [*own, *others] if r.left is not None), key=lambda r: r.left or 0)
    shown = [
        f"job {r.id}{'' if r.user == facts.user else f' ({r.user})'} within {format_duration(r.left)}"
        for r in timed[:_SHOWN]
    ]
    ends = f"; first to end, by time limit: {', '.join(shown)}" if shown else ""
    return Finding((f"{count}{ends}", *_use_by_user(facts, [*own, *others])))


def _use_by_user(facts: PendingFacts, running: Sequence[Queued]) -> list[str]:
    """Return what each user uses: GPUs if the job requests them and Slurm tracks them, else CPUs."""
    name, noun = ("gres/gpu", "GPU") if facts.requested.get("gres/gpu") else ("cpu", "CPU")
    used: Counter[str] = Counter()
    for row in running:
        used[row.user] += int(row.holds(name))
    me = "this job's user"
    shown = [
        f"{plural(count, noun)} by {me if user == facts.user else user}" for user, count in used.most_common() if count
    ]
    more = f", and more by {plural(len(shown) - _SHOWN, 'other user')}" if len(shown) > _SHOWN else ""
    return [f"in use: {', '.join(shown[:_SHOWN])}{more}"] if shown else []


def earliest_start(facts: PendingFacts) -> Finding:
    """Return the earliest start time of the job and where it comes from."""
    at = facts.epoch("EligibleTime") or facts.epoch("StartTime")
    if at is None:
        return Finding(unseen=("the job's earliest start time",))
    here = [f"the job's earliest start time is {format_time_and_offset(at, facts.now)}"]
    restarts = parse_int(facts.job.get("Restarts", "")) or 0
    if restarts:
        again = f"the job was requeued ({plural(restarts, 'restart')})"
        here.append(f"{again}; Slurm waits a few minutes before each restart")
    return Finding(tuple(here), (f"scontrol update JobId={facts.id} StartTime=now",))


def describe_hold(facts: PendingFacts) -> Finding:
    """Return who holds the job and whether its owner can release it."""
    word = facts.reason.word if facts.reason else ""
    comments = [facts.job.get(key, "") for key in ("AdminComment", "SystemComment")]
    notes = tuple(f"administrators' comment: {text}" for text in comments if text)
    if word == "JobHeldUser":
        owner = f" {facts.user}" if facts.user else ""
        here = f"the job is held, and its user{owner} can release it"
        return Finding((here, *notes), (f"scontrol release {facts.id}",))
    here = "the job is held (priority 0), and users cannot release it"
    return Finding((here, *notes), ("ask the administrators to release the job",))


def array_throttle(facts: PendingFacts) -> Finding:
    """Return how many of the tasks that %N allows are running."""
    most = parse_int(facts.job.get("ArrayTaskThrottle", ""))
    array = facts.job.get("ArrayJobId", "") or facts.id.partition("_")[0]
    if facts.queue is None:
        return Finding(unseen=("the array's running tasks",))
    live = [row for row in facts.queue if row.id.partition("_")[0] == array and row.state not in ("PENDING", *TERMINAL)]
    tasks = f"{len(live)} running{f': {first_few([row.id for row in live])}' if live else ''}"
    if not most:
        return Finding((f"array {array} has a task limit (%N); {tasks}",))
    do = f"scontrol update JobId={array} ArrayTaskThrottle={2 * most}  # or another number"
    return Finding((f"array {array} may run {plural(most, 'task')} at a time (%{most}); {tasks}",), (do,))


def license_use(facts: PendingFacts) -> Finding:
    """Return the requested licenses: how many exist, how many are in use, and by which jobs."""
    mine = _own(facts)
    wanted = dict(mine.licenses) if mine else {}
    if facts.licenses is None or not wanted:
        return Finding(unseen=("the requested licenses, and how many are in use",))
    here, unseen = [], []
    known = {block.get("LicenseName", ""): block for block in facts.licenses}
    for name, count in wanted.items():
        block = known.get(name)
        if block is None:
            unseen.append(f"license {name}")
            continue
        users = [row.id for row in facts.queue or () if row.state == "RUNNING" and name in dict(row.licenses)]
        by = f", by job{'s' * (len(users) > 1)} {first_few(users)}" if users else ""
        in_use = f"{block.get('Used', '?')} of {block.get('Total', '?')} in use{by}"
        here.append(f"the job requests {plural(count, f'{name} license')}; {in_use}")
    return Finding(tuple(here), unseen=tuple(unseen))
