"""Query Slurm about a pending job with a few parallel commands; a failed one hides no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from clusterrun.base.errors import Refused
from clusterrun.base.job import JobId, JobStatus, is_job_id
from clusterrun.scheduler import SlurmCommands
from clusterrun.scheduler.slurm.limits import limits_argv, parse_limits
from clusterrun.scheduler.slurm.nodes import Node, nodes_argv, parse_nodes
from clusterrun.scheduler.slurm.reasons import Reason, find_reason
from clusterrun.scheduler.slurm.sacctmgr import associations_argv, parse_associations
from clusterrun.scheduler.slurm.sbatch import SBATCH_ERRORS
from clusterrun.scheduler.slurm.scontrol import parse_features, parse_jobs, parse_show, show_argv
from clusterrun.scheduler.slurm.sprio import NO_PARTS, Priority, parse_priority, priority_argv
from clusterrun.scheduler.slurm.squeue import parse_queue, queue_argv
from clusterrun.why.pending import queue_position
from clusterrun.why.pending.dependencies import parse_conditions
from clusterrun.why.pending.facts import PendingFacts
from clusterrun.why.pending.nodes import could_not_launch

#: Seconds for each query; they run in parallel.
TIMEOUT = 15.0
#: Error messages of Slurm's commands if slurmctld cannot be reached.
_UNREACHABLE = tuple(text for text, kind, _ in SBATCH_ERRORS if not issubclass(kind, Refused))
#: Reasons for which the nodes are not queried: on a big cluster the answer has megabytes.
_NOT_ABOUT_NODES = frozenset({
    "Dependency", "DependencyNeverSatisfied", "BeginTime", "JobHeldUser", "JobHeldAdmin", "JobArrayTaskLimit",
    "Licenses", "PartitionTimeLimit", "JobHoldMaxRequeue", "InvalidAccount", "InvalidQOS", "AccountNotAllowed",
    "QOSNotAllowed", "MaxMemPerLimit",
})  # fmt: skip
#: Reasons that another account or QOS of the user may avoid.
_ABOUT_ACCOUNTS = frozenset({"AccountNotAllowed", "QOSNotAllowed"})
#: Reasons that another partition may avoid.
_ABOUT_PARTITIONS = frozenset({
    "PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig", "PartitionDown", "PartitionInactive",
    "MaxMemPerLimit", "BadConstraints",
})  # fmt: skip

T = TypeVar("T")
Answer = Callable[[], T | None]


class _Queries:
    """Runs queries in parallel and notes those that failed.

    Once slurmctld cannot be reached, further queries are skipped: each would wait for its timeout.
    """

    def __init__(self, scheduler: SlurmCommands, pool: ThreadPoolExecutor) -> None:
        self._scheduler, self._pool = scheduler, pool
        self._gone = False
        self.unseen: list[str] = []

    def submit(self, what: str, argv: Sequence[str], parse: Callable[[str], T]) -> Answer[T]:
        """Start a query; the returned callable waits for its answer, None if it failed."""
        if self._gone:
            self.unseen.append(f"{what} (skipped: Slurm did not respond to an earlier query)")
            return _nothing
        future = self._pool.submit(self._scheduler.answer, argv, TIMEOUT)

        def answer() -> T | None:
            reply = future.result()
            if not reply.note:
                return parse(reply.text)
            if NO_PARTS not in reply.stderr:  # with it, priority is the order of arrival, so nothing is hidden
                self.unseen.append(f"{what} ({reply.note})")
                self._gone |= any(text in reply.stderr for text in _UNREACHABLE)
            return None

        return answer


def query_facts(scheduler: SlurmCommands, job: JobStatus, now: float) -> PendingFacts:
    """Return the facts on why a job is pending, from three to five parallel commands and a few more."""
    with ThreadPoolExecutor(max_workers=6) as pool:
        return _query_facts(_Queries(scheduler, pool), scheduler, job, now)


def _query_facts(queries: _Queries, scheduler: SlurmCommands, job: JobStatus, now: float) -> PendingFacts:
    # squeue's "None" is a reason too; accounting, which may be the only source for the job, has no reasons
    reason = find_reason(job.reason or ("None" if job.source == "squeue" else ""))
    request = queries.submit("the job's request", show_argv("job", [str(job.id)]), parse_jobs)
    queue = queries.submit("the queue", queue_argv(), parse_queue)
    partitions = queries.submit("the partitions", show_argv("partition"), _blocks_with("PartitionName"))
    nodes: Answer[tuple[list[Node], dict[str, frozenset[str]]]] = _nothing
    reservations: Answer[list[dict[str, str]]] = _nothing
    licenses: Answer[list[dict[str, str]]] = _nothing
    if could_not_launch(job.reason) or _is_about_nodes(reason):
        nodes = queries.submit("the nodes", nodes_argv(), _nodes_and_features)
        reservations = queries.submit("the reservations", show_argv("reservation"), _blocks_with("ReservationName"))
    elif reason is not None and reason.word == "Licenses":
        licenses = queries.submit("the licenses", show_argv("license"), parse_show)
    visible_nodes, features = nodes() or (None, {})
    facts = PendingFacts(
        id=str(job.id),
        reason=reason,
        now=now,
        job=_block(request(), job.id),
        queue=queue(),
        partitions=partitions(),
        nodes=visible_nodes,
        features=features,
        reservations=reservations(),
        licenses=licenses(),
    )
    facts = _with_limits(queries, scheduler, facts)
    if facts.word == "Priority":
        facts = replace(facts, priorities=_priorities(queries, facts))
    if facts.word.startswith("Dependency"):
        facts = replace(facts, past=_past(queries, scheduler, facts))
    return replace(facts, unseen=tuple(queries.unseen))


def _is_about_nodes(reason: Reason | None) -> bool:
    return reason is None or (reason.limit is None and reason.word not in _NOT_ABOUT_NODES)


def _nodes_and_features(text: str) -> tuple[list[Node], dict[str, frozenset[str]]]:
    return parse_nodes(text), parse_features(text)


def _nothing() -> None:
    """Return no answer, for a query that was skipped."""


def _block(blocks: Sequence[dict[str, str]] | None, id: JobId) -> dict[str, str]:
    """Return the block of an array's task, else that of its pending tasks."""
    if not blocks:
        return {}

    def order(block: dict[str, str]) -> tuple[bool, bool]:
        return block.get("ArrayTaskId") != str(id.task), block.get("JobState") != "PENDING"

    return min(blocks, key=order)


def _blocks_with(key: str) -> Callable[[str], list[dict[str, str]]]:
    return lambda text: [block for block in parse_show(text) if block.get(key)]


def _with_limits(queries: _Queries, scheduler: SlurmCommands, facts: PendingFacts) -> PendingFacts:
    """Return the facts with the limits on the job's user, and the user's accounts and QOS, if the reason needs them."""
    if not facts.user:
        return facts
    if facts.limit is None and facts.word not in _ABOUT_ACCOUNTS:
        partition_qos = {block.get("QoS", "") for block in facts.partitions or ()} - {""}
        if facts.word not in _ABOUT_PARTITIONS or not partition_qos:
            return facts
    elif scheduler.facts.accounting:
        argv = associations_argv(facts.user, scheduler.facts.cluster)
        answer = queries.submit("the user's accounts and QOS", argv, parse_associations)
        facts = replace(facts, associations=answer())
    return replace(facts, scopes=queries.submit("the limits", limits_argv(facts.user), parse_limits)())


def _priorities(queries: _Queries, facts: PendingFacts) -> list[Priority] | None:
    """Return the priority factors of the job and of the first job in line."""
    if not facts.job.get("JobId"):
        return None
    ahead = queue_position.find_ahead(facts) or queue_position.Ahead()
    jobs = [facts.job["JobId"], *(id.partition("_")[0] for id in ahead.jobs[:1])]
    return queries.submit("the job's priority factors", priority_argv(jobs), parse_priority)()


def _past(queries: _Queries, scheduler: SlurmCommands, facts: PendingFacts) -> list[JobStatus] | None:
    """Return the dependency's jobs that have left the queue, from accounting."""
    queued = {id for row in facts.rows for id in (str(row.raw), row.id)}
    wanted = {job for _, job, _, _ in parse_conditions(facts.job.get("Dependency", ""))}
    gone = [JobId.parse(text) for text in wanted - queued if is_job_id(text)]
    if not gone:
        return []
    if not scheduler.facts.accounting:
        queries.unseen.append("the end states of jobs that are no longer in the queue (this cluster has no accounting)")
        return None
    answer = scheduler.account(gone, int(facts.now) - 30 * 86_400)
    if not answer.complete:
        queries.unseen.append(f"the end states of jobs that are no longer in the queue ({answer.note})")
    return list(answer.jobs)
