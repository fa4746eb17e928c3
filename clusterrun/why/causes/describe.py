"""Turn a finding into a cause: a kill with its reason, a hang with the missing rank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from clusterrun.why.causes.context import with_reason
from clusterrun.why.causes.evidence import Evidence
from clusterrun.why.causes.hang import (
    all_waited,
    find_absent_ranks,
    none_completed,
    silent_ranks,
    spared_ranks,
    waiting_calls,
)
from clusterrun.why.causes.match import fill_template, name_ranks
from clusterrun.why.causes.model import Cause, EndFacts, Line, LogFinding, Strength
from clusterrun.why.causes.table_peers import NO_TRAFFIC
from clusterrun.why.causes.table_python import EXCEPTION
from clusterrun.why.causes.tracebacks import split_rank

#: Slurm's state of an ended job -> kind of cause.
BY_STATE = {
    "TIMEOUT": "time-limit",
    "PREEMPTED": "preemption",
    "NODE_FAIL": "node-failure",
    "CANCELLED": "cancelled",
    "OUT_OF_MEMORY": "host-memory",
    "BOOT_FAIL": "node-failure",
    "DEADLINE": "deadline",
    "LAUNCH_FAILED": "launch-failed",
}
_KILL = re.compile("SIGKILL|exit code -9|signal: Killed|was terminated abruptly|exited unexpectedly")
BY_DUE = {"TIME LIMIT": "time-limit", "PREEMPTION": "preemption", "NODE FAILURE": "node-failure"}


def full_cause(finding: LogFinding, evidence: Evidence) -> Cause:
    """Return the cause of a finding: a kill or a container with its reason, a hang with the missing rank."""
    cause = _out_of_memory(finding, evidence)
    if cause is not None:
        return cause
    if finding.kind == "crashed" and finding.rank is not None:
        return _crash_of_rank(finding, evidence)
    if finding.kind == "collective-timeout":
        return _hang(finding, evidence)
    if finding.kind in ("worker", "refused"):
        return to_cause(finding, evidence.facts)
    return _with_what_follows(cause_with_context(finding, evidence), finding, evidence)


def cause_with_context(finding: LogFinding, evidence: Evidence) -> Cause:
    """Return the cause of a finding with its reason and its task, as other lines name them."""
    return to_cause(with_task(with_reason(finding, evidence), evidence), evidence.facts)


def _out_of_memory(finding: LogFinding, evidence: Evidence) -> Cause | None:
    """Return that memory ran out, with the task that was killed for it; None for another finding, or without both."""
    memory: LogFinding | None = finding
    task: LogFinding | None = finding
    if _is_kill(finding):
        memory = evidence.of_kind("host-memory")
    elif finding.kind == "host-memory" and finding.rank is None:
        task = evidence.first(lambda f: _is_killed_task(f) and _may_be_same_task(f, finding))
    else:
        return None
    if memory is None or task is None:
        return None
    cause = to_cause(memory, evidence.facts)
    who = task if task.rank is not None and _may_be_same_task(task, memory) else memory
    return replace(cause, rank=who.rank, node=who.node or cause.node, evidence=evidence_lines(memory, task))


def _is_kill(finding: LogFinding) -> bool:
    """Return whether a process was killed, by its own end or by an exception of the process that waited for it."""
    return finding.kind == "killed" or (finding.row is EXCEPTION and _KILL.search(finding.sentence) is not None)


def _crash_of_rank(finding: LogFinding, evidence: Evidence) -> Cause:
    """Return a crash with its reason; the rank's own report of it comes first in the evidence."""
    inner = evidence.first(lambda f: f.kind == "crashed" and f is not finding and f.rank == finding.rank)
    cause = to_cause(with_reason(finding, evidence), evidence.facts)
    return replace(cause, evidence=evidence_lines(inner, finding))


def _is_killed_task(finding: LogFinding) -> bool:
    return finding.kind in ("host-memory", "killed") and finding.rank is not None


def _with_what_follows(cause: Cause, finding: LogFinding, evidence: Evidence) -> Cause:
    """Return the cause with what went wrong besides it, or because of it."""
    unopened = evidence.first(lambda f: "can't open file" in f.line.text) if finding.kind == "address-in-use" else None
    if unopened is not None:  # neither follows from the other
        cause = replace(cause, sentence=f"{cause.sentence}; besides, {unopened.sentence}")
    if "failed (exitcode: -" not in finding.line.text:  # torchrun reports a signal without a host
        return cause
    lost = evidence.first(lambda f: "agent" in f.values)
    if lost is None:
        return cause
    return replace(cause, sentence=f"{cause.sentence}; then {lost.sentence}", evidence=(*cause.evidence, lost.line))


def _may_be_same_task(task: LogFinding, memory: LogFinding) -> bool:
    """Return whether a line on memory, which names a node at most, can be about that task."""
    return not memory.node or (task.node in ("", memory.node) and len(task.ranks) < 2)


def with_task(finding: LogFinding, evidence: Evidence) -> LogFinding:
    """Return a cause without a rank with the rank that left no record, or the task that srun reports first."""
    if finding.rank is not None or not _ends_its_rank(finding):
        return finding
    silent = silent_ranks(evidence.facts) if finding.kind in ("killed", "crashed") else []
    if len(silent) == 1:
        return replace(finding, rank=silent[0])
    raised = _exception_of_assertion(finding, evidence)
    if raised is not None:
        return replace(finding, rank=raised.rank, place=finding.place or raised.place)
    task = _task_ended_after(finding, evidence)
    return finding if task is None else replace(finding, rank=task.rank, node=task.node)


def _ends_its_rank(finding: LogFinding) -> bool:
    """Return whether a finding is the end of a rank: an exception is, hints and what the scheduler did need not be."""
    is_end = finding.strength is Strength.CAUSE or bool(finding.place)
    return is_end and finding.kind not in BY_STATE.values()


def _exception_of_assertion(finding: LogFinding, evidence: Evidence) -> LogFinding | None:
    """Return the exception after an assertion on the GPU, whose own lines have no rank."""
    if finding.kind != "cuda-assert":
        return None
    return evidence.first(lambda f: f.kind == "cuda-assert" and (f.rank is not None or bool(f.place)))


def _is_crash_or_end(finding: LogFinding) -> bool:
    """Return whether srun or torchrun reports a crash, or the end of tasks with a status."""
    return bool(finding.ranks) and (finding.kind == "crashed" or finding.is_ended_task)


def _task_ended_after(finding: LogFinding, evidence: Evidence) -> LogFinding | None:
    """Return the task that ended first after a cause, if it may be its own; a crash need not have it as its reason."""
    task = evidence.first(lambda f: f.index > finding.index and _is_crash_or_end(f))
    if task is None or task.kind == "crashed":
        return None
    return task if len(task.ranks) == 1 and finding.node in ("", task.node) else None


def _hang(finding: LogFinding, evidence: Evidence) -> Cause:
    """Return the cause of a collective that timed out: who did not join it, if that is known."""
    cause = to_cause(finding, evidence.facts)
    waited = f"; a waiting rank was at {cause.place}" if cause.place else ""
    absent, how = find_absent_ranks(evidence)
    if absent:
        who = format_ranks(absent, evidence.facts)
        return replace(
            cause, rank=absent[0], node=evidence.facts.node_of(absent[0]), place="",
            sentence=f"{cause.sentence}: {who} did not join ({how}){waited}",
            command=f"clusterrun logs JOB --rank {absent[0]} -n 50",
        )  # fmt: skip
    reporter = _unknown_rank(finding, cause.node)
    cause = replace(cause, rank=None, node="", place="", command="clusterrun logs JOB -n 50")
    if all_waited(evidence):
        called = f"though each of the {evidence.facts.world_size} ranks had called the collective"
        return replace(cause, sentence=f"{cause.sentence}, {called}{waited}", advice=NO_TRAFFIC)
    what_is_known = waiting_calls(evidence.findings) or spared_ranks(evidence) or reporter
    cause = replace(cause, sentence=f"{cause.sentence}; {what_is_known}{waited}")
    if not none_completed(evidence.logs):
        return cause
    sentence = f"{cause.sentence}; no earlier collective had completed"
    return replace(cause, sentence=sentence, advice=f"if no rank was stuck elsewhere, {NO_TRAFFIC}")


def _unknown_rank(finding: LogFinding, node: str) -> str:
    """Return that no rank is known to be missing, and which one reported the time-out."""
    unknown = "the logs do not show which rank was missing"
    rank = split_rank(finding.line)[0]  # the rank in the message counts within its process group
    if rank is None:
        return unknown
    return f"{unknown}; {_format_rank(rank, node)} reported the timeout first"


def to_cause(finding: LogFinding, facts: EndFacts) -> Cause:
    """Return the cause of a finding as it is."""
    node = finding.node or facts.node_of(finding.rank)
    return Cause(
        kind=finding.kind, sentence=finding.sentence, node=node, place=finding.place,
        rank=None if finding.kind == "no-process-group" else finding.rank,  # it is about all ranks
        evidence=evidence_lines(finding), advice=finding.advice, command=_command(finding, node),
        source=finding.row.source,
    )  # fmt: skip


def _command(finding: LogFinding, node: str) -> str:
    """Return the command of a finding with its node, if that is known."""
    if "{node}" in finding.row.command and not finding.values.get("node"):
        return fill_template(finding.row.command, {**finding.values, "node": node or "NODE"})
    return finding.command.replace("NODE", node) if node else finding.command


def evidence_lines(*findings: LogFinding | None) -> tuple[Line, ...]:
    return tuple(finding.line for finding in findings if finding is not None and finding.line.text)


def format_ranks(ranks: Sequence[int], facts: EndFacts) -> str:
    """Return ``rank 0 on n1, rank 3 on n2``, at most four; of more ranks on unknown nodes all, as ``ranks 0-7``."""
    if len(ranks) > 4 and facts.nodes.keys().isdisjoint(ranks):
        return name_ranks(ranks)
    shown = ", ".join(_format_rank(rank, facts.node_of(rank)) for rank in ranks[:4])
    return f"{shown} …" if len(ranks) > 4 else shown


def _format_rank(rank: int, node: str) -> str:
    return f"rank {rank} on {node}" if node else f"rank {rank}"
