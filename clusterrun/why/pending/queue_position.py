"""Explain a job's place in the queue: jobs ahead, earliest start, holds, the array's %N. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterrun.job import TERMINAL
from clusterrun.reasons import find_reason
from clusterrun.scheduler.slurm.sprio import Priority
from clusterrun.scheduler.slurm.squeue import Queued
from clusterrun.scheduler.slurm.values import parse_duration, parse_int
from clusterrun.terminal.units import first_few, format_duration, format_time_and_offset, plural
from clusterrun.why.pending.facts import Finding, PendingFacts
from clusterrun.why.pending.nodes import has_room

_SHOWN = 4
#: Reasons of jobs that wait for their turn and nothing else.
_COMPETING = frozenset({"", "None", "WaitingForScheduling", "Priority", "Resources"})
#: Reasons with which a job has a place in the line.
_IN_LINE = frozenset({*_COMPETING, "ReqNodeNotAvail", "Reservation", "Licenses", "MpiPortsBusy", "NvidiaImexChannels"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """The visible jobs ahead of a job; an array counts as one.

    ``jobs`` wait in the same partition for their turn, ``others`` there for something of their own, ``elsewhere`` in
    partitions that go first on the same nodes.
    """

    jobs: tuple[str, ...] = ()
    others: int = 0
    elsewhere: tuple[tuple[str, int], ...] = ()

    def sentence(self, partitions: tuple[str, ...]) -> str:
        """Return the counts as a sentence."""
        where = f"partition {', '.join(partitions)}"
        first = f"{plural(len(self.jobs), 'job')} in {where} that you can see"
        if self.jobs:
            first += f": {first_few(list(self.jobs))}"
        if self.others:
            first += f"; {self.others} more ahead of it {'waits' if self.others == 1 else 'wait'} for other reasons"
        for name, count in self.elsewhere:
            first += f"; {plural(count, 'job')} in partition {name}, which has priority on the same nodes"
        return first


def find_ahead(facts: PendingFacts) -> Ahead | None:
    """Return the jobs with a higher priority, or with the same and an earlier id.

    None for a job that waits for something of its own, and where the queue could not be seen.
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
    counted = []
    for name in _partitions_first(facts):
        rows = [row for row in waiting if name in row.partitions and _word(row) in _COMPETING]
        counted += [(name, len(rows))] if rows else []
    return Ahead(jobs=tuple(row.id for row in in_line), others=len(here) - len(in_line), elsewhere=tuple(counted))


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
    here = [f"its priority is {_made_of(own)}"]
    first = find_ahead(facts)
    others = [one for one in facts.priorities or () if first and str(one.job) in first.jobs[:1]]
    here += [f"job {one.job}, the first in line, has {_made_of(one)}" for one in others[:1]]
    return Finding(tuple(here))


def _made_of(one: Priority) -> str:
    named = ", ".join(f"{name} {value:g}" for name, value in one.parts)
    return f"{one.total:g}{f': {named}' if named else ''}"


def backfill_gap(facts: PendingFacts) -> Finding:
    """Return the time limit with which the job ends before the next job ahead is expected to start.

    Nothing where it has no room now, or where Slurm expects none of them yet: a user cannot raise a limit again.
    """
    before = find_ahead(facts)
    if before is None or before.elsewhere or not has_room(facts):
        return Finding()
    planned = {row.id: row.start for row in facts.queue or () if row.start is not None}
    starts = [(planned[id], id) for id in before.jobs if planned.get(id, 0) > facts.now]
    asked = parse_duration(facts.job.get("TimeLimit", ""))
    # Slurm counts in minutes, and a job is started some seconds after it could be
    minutes = int(min(starts)[0] - facts.now) // 60 - 1 if starts else 0
    if minutes < 1 or (asked is not None and asked <= minutes * 60):
        return Finding()
    command = f"scontrol update JobId={facts.id} TimeLimit={minutes}"
    why = f"minutes: it would end before job {min(starts)[1]} is expected to start; you cannot raise the limit again"
    return Finding(
        do=("wait, or start it before them with a shorter time limit, if that is enough:", f"{command}  # {why}")
    )


def next_ends(facts: PendingFacts) -> Finding:
    """Return the running jobs of the partition, or on the same nodes, that end first."""
    if facts.queue is None or not facts.partition_names:
        return Finding()
    mine, sharing = set(facts.partition_names), _sharing(facts)
    live = [r for r in facts.queue if r.state == "RUNNING"]
    own = [r for r in live if mine & set(r.partitions)]
    others = [r for r in live if not mine & set(r.partitions) and sharing & set(r.partitions)]
    where = f"partition {', '.join(facts.partition_names)}"
    count = f"{plural(len(own), 'job')} running there" if own else f"no job that you can see runs in {where}"
    if others:
        names = dict.fromkeys(name for r in others for name in r.partitions)
        count += (
            f", {len(others)} in {first_few(list(names))}, which {'shares' if len(names) == 1 else 'share'} its nodes"
        )
    timed = sorted((r for r in [*own, *others] if r.left is not None), key=lambda r: r.left or 0)
    shown = [
        f"{r.id}{'' if r.user == facts.user else f' of {r.user}'} within {format_duration(r.left)}"
        for r in timed[:_SHOWN]
    ]
    ends = f"; by their time limits these end first: {', '.join(shown)}" if shown else ""
    held = _held_by(facts, [*own, *others])
    return Finding((f"{count}{ends}", *((held,) if held else ())))


def _held_by(facts: PendingFacts, running: Sequence[Queued]) -> str:
    """Return how much each user uses: GPUs if the job requests them and Slurm tracks them, else CPUs."""
    name, noun = ("gres/gpu", "GPU") if facts.requested.get("gres/gpu") else ("cpu", "CPU")
    sums: dict[str, float] = {}
    for row in running:
        sums[row.user] = sums.get(row.user, 0) + row.holds(name)
    biggest = sorted(((user, held) for user, held in sums.items() if held), key=lambda pair: -pair[1])
    shown = [
        f"{plural(int(held), noun)} by {'the same user' if user == facts.user else user}" for user, held in biggest
    ]
    return f"in use there: {first_few(shown, _SHOWN)}" if shown else ""


def earliest_start(facts: PendingFacts) -> Finding:
    """Return the earliest start time of the job and where it comes from."""
    at = facts.epoch("EligibleTime") or facts.epoch("StartTime")
    if at is None:
        return Finding(unseen=("its earliest start time",))
    here = [f"it cannot start before {format_time_and_offset(at, facts.now)}"]
    restarts = parse_int(facts.job.get("Restarts", "")) or 0
    if restarts:
        again = f"it was requeued ({plural(restarts, 'restart')})"
        here.append(f"{again}; Slurm waits a few minutes before it restarts a job")
    return Finding(tuple(here), (f"scontrol update JobId={facts.id} StartTime=now",))


def describe_hold(facts: PendingFacts) -> Finding:
    """Return who holds the job and whether its owner can release it."""
    word = facts.reason.word if facts.reason else ""
    said = [facts.job.get(key, "") for key in ("AdminComment", "SystemComment")]
    notes = tuple(f"administrators' comment: {text}" for text in said if text)
    if word == "JobHeldUser":
        owner = facts.user
        return Finding((f"it is held by its user{f', {owner}' if owner else ''}, who can release it", *notes),
                     (f"scontrol release {facts.id}",))  # fmt: skip
    here = "it is held by an administrator (priority 0): users cannot release it"
    return Finding((here, *notes), ("ask the administrators to release it",))


def array_throttle(facts: PendingFacts) -> Finding:
    """Return how many of the tasks that %N allows are running."""
    most = parse_int(facts.job.get("ArrayTaskThrottle", ""))
    array = facts.job.get("ArrayJobId", "") or facts.id.partition("_")[0]
    if facts.queue is None:
        return Finding(unseen=("the array's running tasks",))
    live = [row for row in facts.queue if row.id.partition("_")[0] == array and row.state not in ("PENDING", *TERMINAL)]
    tasks = f": {first_few([row.id for row in live])}" if live else ""
    allows = (
        f"%{most} allows {plural(most, 'task')} of array {array} at a time"
        if most
        else f"array {array} has a task limit (%N)"
    )
    do = (f"scontrol update JobId={array} ArrayTaskThrottle={2 * most}  # or another number",) if most else ()
    return Finding((f"{allows}; {len(live)} running{tasks}",), do)


def license_use(facts: PendingFacts) -> Finding:
    """Return the requested licenses: how many exist, how many are in use, and by which jobs."""
    mine = _own(facts)
    wanted = dict(mine.licenses) if mine else {}
    if facts.licenses is None or not wanted:
        return Finding(unseen=("the licenses it requests and how many are in use",))
    here, unseen = [], []
    known = {block.get("LicenseName", ""): block for block in facts.licenses}
    for name, count in wanted.items():
        block = known.get(name)
        if block is None:
            unseen.append(f"license {name}")
            continue
        users = [row.id for row in facts.queue or () if row.state == "RUNNING" and name in dict(row.licenses)]
        by = f", by {first_few(users)}" if users else ""
        here.append(f"it requests {count} {name}; {block.get('Used', '?')} of {block.get('Total', '?')} in use{by}")
    return Finding(tuple(here), unseen=tuple(unseen))
