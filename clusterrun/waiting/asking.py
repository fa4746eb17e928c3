"""What is asked about a job that waits: a few commands side by side, any of which may fail and hide no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from clusterrun.job import JobId, JobStatus
from clusterrun.reasons import Limit, explain
from clusterrun.scheduler.slurm import Reply, SlurmScheduler
from clusterrun.scheduler.slurm_limits import Holder, limits_argv, parse_limits
from clusterrun.scheduler.slurm_nodes import nodes_argv, parse_nodes
from clusterrun.scheduler.slurm_priority import NO_PARTS, Priority, parse_priority, priority_argv
from clusterrun.scheduler.slurm_queue import parse_queue, queue_argv
from clusterrun.scheduler.slurm_show import parse_show, show_argv
from clusterrun.survey import Association, associations_argv, parse_associations
from clusterrun.waiting import turns
from clusterrun.waiting.dependencies import conditions
from clusterrun.waiting.facts import Facts

#: Seconds that one question may take; all of them are asked at once.
TIMEOUT = 15.0
#: Reasons that have nothing to do with nodes, so that they are not asked for (a big cluster's answer has megabytes).
_NOT_ABOUT_NODES = frozenset({
    "Dependency", "DependencyNeverSatisfied", "BeginTime", "JobHeldUser", "JobHeldAdmin", "JobArrayTaskLimit",
    "Licenses", "PartitionTimeLimit", "JobHoldMaxRequeue", "InvalidAccount", "InvalidQOS", "AccountNotAllowed",
    "QOSNotAllowed",
})  # fmt: skip
#: How many accounts up the tree are asked about: a limit may be set on any of them.
_LEVELS = 3

T = TypeVar("T")


class _Desk:
    """Asks, and keeps a line of everything that was not answered."""

    def __init__(self, scheduler: SlurmScheduler) -> None:
        self._scheduler = scheduler
        self.unseen: list[str] = []

    def many(self, questions: dict[str, tuple[Sequence[str], Callable[[str], T]]]) -> dict[str, T]:
        """The answers by name, all asked at once; what was not answered is missing."""
        with ThreadPoolExecutor(max_workers=max(1, len(questions))) as pool:
            replies = {
                name: pool.submit(self._scheduler.answer, argv, TIMEOUT) for name, (argv, _) in questions.items()
            }
        found = {}
        for name, (_, parse) in questions.items():
            reply: Reply = replies[name].result()
            if reply.note:
                self.unseen.append(f"{name} ({reply.note})")
            else:
                found[name] = parse(reply.text)
        return found


def ask(scheduler: SlurmScheduler, job: JobStatus, now: float) -> Facts:
    """Everything that bears on why a job waits: four or five commands at once, and at most a few more."""
    desk = _Desk(scheduler)
    reason = explain(job.reason) if job.reason else None
    questions: dict[str, tuple[Sequence[str], Callable[[str], object]]] = {
        "the job's request": (show_argv("job", [str(job.id)]), parse_show),
        "the queue": (queue_argv(), parse_queue),
        "the partitions": (show_argv("partition"), parse_show),
    }
    word = reason.word if reason else ""
    if word not in _NOT_ABOUT_NODES and not (reason and reason.limit):
        questions["the nodes"] = (nodes_argv(), parse_nodes)
        questions["the reservations"] = (show_argv("reservation"), parse_show)
    if word == "Licenses":
        questions["the licenses"] = (show_argv("license"), parse_show)
    found = desk.many(questions)
    request = _block(found.get("the job's request"), job.id)  # type: ignore[arg-type]
    known = Facts(
        id=str(job.id),
        reason=reason,
        now=now,
        job=request,
        queue=found.get("the queue"),  # type: ignore[arg-type]
        partitions=found.get("the partitions"),  # type: ignore[arg-type]
        nodes=found.get("the nodes"),  # type: ignore[arg-type]
        reservations=_reservations(found.get("the reservations")),  # type: ignore[arg-type]
        licenses=found.get("the licenses"),  # type: ignore[arg-type]
    )
    return replace(
        known,
        holders=_holders(desk, known, reason.limit) if reason and reason.limit else None,
        associations=_associations(desk, scheduler, known) if reason and reason.limit else None,
        priorities=_priorities(desk, known) if word == "Priority" else None,
        past=_past(desk, scheduler, known) if word.startswith("Dependency") else None,
        unseen=tuple(desk.unseen),
    )


def _block(blocks: Sequence[dict[str, str]] | None, id: JobId) -> dict[str, str]:
    """Of an array's blocks that of the task, else the one that stands for all tasks that wait."""
    if not blocks:
        return {}
    exact = [b for b in blocks if id.task is not None and b.get("ArrayTaskId") == str(id.task)]
    waiting = [b for b in blocks if b.get("JobState") == "PENDING"]
    return (exact or waiting or list(blocks))[0]


def _reservations(blocks: Sequence[dict[str, str]] | None) -> list[dict[str, str]] | None:
    return None if blocks is None else [block for block in blocks if block.get("ReservationName")]


def _holders(desk: _Desk, facts: Facts, limit: Limit) -> list[Holder] | None:
    """The limits of the job's QOS and its partition's, or of its account and those above it."""
    if limit.owner == "qos":
        partition_qos = [p.get("QoS", "") for p in facts.own_partitions]
        names = [name for name in dict.fromkeys([facts.job.get("QOS", ""), *partition_qos]) if name]
        return _limits(desk, names, ()) if names else None
    found: list[Holder] = []
    account = facts.job.get("Account", "")
    for _ in range(_LEVELS):
        rows = _limits(desk, (), [account]) if account else None
        if rows is None:
            break
        found += rows
        account = next((row.parent for row in rows if row.parent and not row.user), "")
        if account == "root" or any(_set(row, limit, facts) for row in rows):
            break
    return found or None


def _associations(desk: _Desk, scheduler: SlurmScheduler, facts: Facts) -> tuple[Association, ...] | None:
    """The accounts and QOS that the job's user has: where else the job could go."""
    if not scheduler.facts.accounting or not facts.user:
        return None
    question = (associations_argv(facts.user, scheduler.facts.cluster), parse_associations)
    return desk.many({"the accounts and QOS of its user": question}).get("the accounts and QOS of its user")


def _limits(desk: _Desk, qos: Sequence[str], accounts: Sequence[str]) -> list[Holder] | None:
    return desk.many({"the limits": (limits_argv(qos, accounts), parse_limits)}).get("the limits")


def _set(row: Holder, limit: Limit, facts: Facts) -> bool:
    mine = row.user in ("", facts.user)
    return mine and any(bound.limit is not None for bound in row.bounds(limit.field, limit.tres))


def _priorities(desk: _Desk, facts: Facts) -> list[Priority] | None:
    """What the priority of the job is made of, and that of the first in line."""
    ahead = turns.ahead(facts)
    first = [id.partition("_")[0] for id in ahead.jobs[:1]] if ahead else []
    if not facts.job.get("JobId"):
        return None
    name, question = "the parts of its priority", (priority_argv([facts.job["JobId"], *first]), parse_priority)
    found = desk.many({name: question}).get(name)
    # where priority is the order of arrival it has no parts: nothing is hidden
    desk.unseen = [line for line in desk.unseen if not line.startswith(name) or NO_PARTS not in line]
    return found


def _past(desk: _Desk, scheduler: SlurmScheduler, facts: Facts) -> list[JobStatus] | None:
    """The jobs of the dependency that have left the queue, by accounting."""
    here = {str(row.raw) for row in facts.queue or ()} | {row.id for row in facts.queue or ()}
    wanted = {one.job for one in conditions(facts.job.get("Dependency", "")) if one.job}
    gone = [JobId.parse(text) for text in wanted - here if text.replace("_", "").isdigit()]
    if not gone:
        return []
    if not scheduler.facts.accounting:
        desk.unseen.append("how jobs ended that have left the queue (this cluster keeps no accounts)")
        return None
    answer = scheduler.account(gone, int(facts.now) - 30 * 86_400)
    if not answer.complete:
        desk.unseen.append(f"how jobs ended that have left the queue ({answer.note})")
    return list(answer.jobs)
