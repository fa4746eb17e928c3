"""Explain a job's place in the queue: jobs ahead, earliest start, holds, the array's %N. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from clusterrun.base.job import TERMINAL
from clusterrun.base.units import clause, first_few, format_duration, format_time_and_offset, plural
from clusterrun.scheduler.slurm.reasons import find_reason
from clusterrun.scheduler.slurm.sprio import Priority
from clusterrun.scheduler.slurm.squeue import Queued
from clusterrun.why.pending.facts import Finding, PendingFacts, number_in
from clusterrun.why.pending.nodes import has_room, partition_nodes, shorter_limit_command

_SHOWN = 4
#: Reasons of jobs that wait only for resources or priority.
_COMPETING = frozenset({"", "None", "WaitingForScheduling", "Priority", "Resources"})
#: Reasons with which a job has a position in the queue.
_IN_LINE = frozenset({*_COMPETING, "ReqNodeNotAvail", "Reservation", "Licenses", "MpiPortsBusy", "NvidiaImexChannels"})


@dataclass(frozen=True, slots=True)
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
    waiting = sorted(filter(_is_waiting, facts.rows), key=_order)
    own = facts.own_row
    if own is None or own not in waiting or facts.word not in _IN_LINE:
        return None
    before = [row for row in waiting[: waiting.index(own)] if facts.is_in_one_of(row.partitions)]
    jobs = tuple(row.id for row in before if _competes(row))
    return Ahead(jobs, len(before) - len(jobs), _elsewhere(facts, waiting))


def _is_waiting(row: Queued) -> bool:
    return row.state == "PENDING" and row.priority > 0


def _order(row: Queued) -> tuple[int, int]:
    return -row.priority, row.raw


def _competes(row: Queued) -> bool:
    """Return whether a pending job waits only for resources or priority."""
    if row.reason in _COMPETING:
        return True
    reason = find_reason(row.reason)
    return reason is not None and reason.word in _COMPETING


def _elsewhere(facts: PendingFacts, waiting: Iterable[Queued]) -> tuple[tuple[str, int], ...]:
    """Return the partitions of a higher tier on the job's nodes, each with the number of its competing jobs."""
    tiers = [number_in(partition, "PriorityTier") for partition in facts.own_partitions]
    sharing = _sharing(facts)
    competing: Counter[str] = Counter()
    for row in filter(_competes, waiting):
        competing.update(sharing.intersection(row.partitions))
    elsewhere = []
    for partition in facts.partitions or ():
        name = partition["PartitionName"]
        if competing[name] and number_in(partition, "PriorityTier") > max(tiers, default=math.inf):
            elsewhere.append((name, competing[name]))
    return tuple(elsewhere)


def _sharing(facts: PendingFacts) -> set[str]:
    """Return the other partitions that share nodes with the job's."""
    shared = set[str]().union(*(node.partitions for node in partition_nodes(facts)))
    return shared - set(facts.partition_names)


def priority_parts(facts: PendingFacts) -> Finding:
    """Return the job's priority factors beside those of the first job in line."""
    by_job = {str(priority.job): priority for priority in facts.priorities or ()}
    own = by_job.get(facts.job.get("JobId", ""))
    if own is None:
        return Finding()
    here = [f"the job's priority is {_made_of(own)}"]
    ahead = find_ahead(facts) or Ahead()
    for first in ahead.jobs[:1]:
        if first in by_job:
            here.append(f"job {first}, the first in line, has priority {_made_of(by_job[first])}")
    return Finding(tuple(here))


def _made_of(one: Priority) -> str:
    named = ", ".join(f"{name} {value:.10g}" for name, value in one.parts)
    return f"{one.total:.10g}{clause(named, ': {}')}"


def backfill_gap(facts: PendingFacts) -> Finding:
    """Return the time limit with which the job ends before the next job ahead is expected to start.

    Nothing without room for it now or an expected start: a user cannot raise the limit again.
    """
    before = find_ahead(facts)
    if before is None or before.elsewhere or not has_room(facts):
        return Finding()
    first, at = "", math.inf
    for row in facts.rows:
        start = row.start or 0
        if row.id in before.jobs and facts.now < start < at:
            first, at = row.id, start
    command = shorter_limit_command(facts, at) if first else ""
    if not command:
        return Finding()
    why = f"so that the job ends before job {first} is expected to start; you cannot raise the limit later"
    wait = "wait; or, if the job needs less time, shorten its time limit so that it can start before the jobs ahead:"
    return Finding(do=(wait, f"{command}, {why}"))


def next_ends(facts: PendingFacts) -> Finding:
    """Return the running jobs of the partition, or on the same nodes, that end first."""
    if facts.queue is None or not facts.partition_names:
        return Finding()
    own: list[Queued] = []
    others: list[Queued] = []
    sharing = _sharing(facts)
    for row in facts.queue:
        if row.state != "RUNNING":
            continue
        if facts.is_in_one_of(row.partitions):
            own.append(row)
        elif not sharing.isdisjoint(row.partitions):
            others.append(row)
    count = _count_running(facts, own, others)
    return Finding((f"{count}{_first_ends(facts, own + others)}", *_use_by_user(facts, own + others)))


def _count_running(facts: PendingFacts, own: Sequence[Queued], others: Sequence[Queued]) -> str:
    where = facts.partition_text
    count = f"{plural(len(own), 'job')} running in {where}" if own else f"no job visible to you is running in {where}"
    if not others:
        return count
    names = dict.fromkeys(chain.from_iterable(row.partitions for row in others))
    return f"{count}; {plural(len(others), 'job')} running in partition {first_few([*names])} (same nodes)"


def _first_ends(facts: PendingFacts, running: Iterable[Queued]) -> str:
    """Return the jobs that reach their time limits first; empty if none has one."""
    limited = [(row.left, row) for row in running if row.left is not None]
    limited.sort(key=lambda job: job[0])  # of equal ones the order of the queue
    ends = []
    for left, row in limited[:_SHOWN]:
        whose = "" if row.user == facts.user else f" ({row.user})"
        ends.append(f"job {row.id}{whose} within {format_duration(left)}")
    return clause(", ".join(ends), "; first to end, by time limit: {}")


def _use_by_user(facts: PendingFacts, running: Sequence[Queued]) -> list[str]:
    """Return what each user uses: GPUs if the job requests them and Slurm tracks them, else CPUs."""
    name, noun = ("gres/gpu", "GPU") if facts.requested.get("gres/gpu") else ("cpu", "CPU")
    used: Counter[str] = Counter()
    for row in running:
        user = "this job's user" if row.user == facts.user else row.user
        used[user] += int(row.holds(name))
    shown = [f"{plural(count, noun)} by {user}" for user, count in (+used).most_common()]
    if not shown:
        return []
    if len(shown) > _SHOWN:
        shown[_SHOWN:] = [f"and more by {plural(len(shown) - _SHOWN, 'other user')}"]
    return [f"in use: {', '.join(shown)}"]


def earliest_start(facts: PendingFacts) -> Finding:
    """Return the earliest start time of the job and where it comes from."""
    at = facts.epoch("EligibleTime") or facts.epoch("StartTime")
    if at is None:
        return Finding(unseen=("the job's earliest start time",))
    here = [f"the job's earliest start time is {format_time_and_offset(at, facts.now)}"]
    restarts = number_in(facts.job, "Restarts")
    if restarts:
        again = f"the job was requeued ({plural(restarts, 'restart')})"
        here.append(f"{again}; Slurm waits a few minutes before each restart")
    return Finding(tuple(here), (facts.update("StartTime", "now"),))


def describe_hold(facts: PendingFacts) -> Finding:
    """Return who holds the job and whether its owner can release it."""
    if facts.word == "JobHeldUser":
        here = f"the job is held, and its user{clause(facts.user, ' {}')} can release it"
        found = Finding((here,), (f"scontrol release {facts.id}",))
    else:
        here = "the job is held (priority 0), and users cannot release it"
        found = Finding((here,), ("ask the administrators to release the job",))
    for key in ("AdminComment", "SystemComment"):
        if facts.job.get(key):
            found += Finding((f"administrators' comment: {facts.job[key]}",))
    return found


def array_throttle(facts: PendingFacts) -> Finding:
    """Return how many of the tasks that %N allows are running."""
    most = number_in(facts.job, "ArrayTaskThrottle")
    array = facts.job.get("ArrayJobId", facts.id.partition("_")[0])
    if facts.queue is None:
        return Finding(unseen=("the array's running tasks",))
    tasks_of_array = [row for row in facts.queue if row.id.partition("_")[0] == array]
    live = [row.id for row in tasks_of_array if row.state not in ("PENDING", *TERMINAL)]
    tasks = f"{len(live)} running{clause(first_few(live), ': {}')}"
    if not most:
        return Finding((f"array {array} has a task limit (%N); {tasks}",))
    do = f"scontrol update JobId={array} ArrayTaskThrottle={2 * most}  # or another number"
    return Finding((f"array {array} may run {plural(most, 'task')} at a time (%{most}); {tasks}",), (do,))


def license_use(facts: PendingFacts) -> Finding:
    """Return the requested licenses: how many exist, how many are in use, and by which jobs."""
    wanted = facts.own_row.licenses if facts.own_row else ()
    if facts.licenses is None or not wanted:
        return Finding(unseen=("the requested licenses, and how many are in use",))
    blocks = {block.get("LicenseName", ""): block for block in facts.licenses}
    found = Finding()
    for name, count in wanted:
        if name in blocks:
            requests = f"the job requests {plural(count, f'{name} license')}"
            found += Finding((f"{requests}; {_license_use(facts, name, blocks[name])}",))
        else:
            found += Finding(unseen=(f"license {name}",))
    return found


def _license_use(facts: PendingFacts, name: str, block: dict[str, str]) -> str:
    users = [row.id for row in facts.rows if row.state == "RUNNING" and name in dict(row.licenses)]
    by = clause(first_few(users), f", by job{'s' * (len(users) > 1)} {{}}")
    return f"{block.get('Used', '?')} of {block.get('Total', '?')} in use{by}"
