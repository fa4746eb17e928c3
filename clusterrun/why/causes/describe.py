"""Turn a finding into a cause: a kill with its reason, a hang with the missing rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusterrun.why.causes.context import with_reason
from clusterrun.why.causes.hang import (
    AbsentRanks,
    all_waited,
    find_absent_ranks,
    none_completed,
    spared_ranks,
    waiting_calls,
)
from clusterrun.why.causes.match import fill_template, name_ranks
from clusterrun.why.causes.model import Cause, EndFacts, Line, LogFinding, Strength
from clusterrun.why.causes.table_peers import NO_TRAFFIC
from clusterrun.why.causes.table_python import EXCEPTION
from clusterrun.why.causes.tracebacks import split_rank

Logs = Sequence[Sequence[Line]]

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
BY_DUE = {"TIME LIMIT": "time-limit", "PREEMPTION": "preemption", "NODE FAILURE": "node-failure"}


def full_cause(best: LogFinding, findings: Sequence[LogFinding], logs: Logs, facts: EndFacts) -> Cause:
    """Return the cause of a finding: a kill or a container with its reason, a hang with the missing rank."""
    if best.kind == "killed" or (best.row is EXCEPTION and _mentions_kill(best.sentence)):
        memory = next((f for f in findings if f.kind == "host-memory" and f.strength <= Strength.HINT), None)
        if memory is not None:
            cause = to_cause(memory, facts)
            who = best if best.rank is not None and _may_be_same_task(best, memory) else memory
            evidence = (*evidence_lines(memory), *evidence_lines(best))
            return replace(cause, rank=who.rank, node=who.node or cause.node, evidence=evidence)
    if best.kind == "host-memory" and best.rank is None:
        killed = [f for f in findings if f.kind in ("host-memory", "killed") and f.rank is not None]
        task = next((f for f in killed if _may_be_same_task(f, best)), None)
        if task is not None:
            evidence = (*evidence_lines(best), *evidence_lines(task))
            return replace(to_cause(best, facts), rank=task.rank, node=task.node, evidence=evidence)
    if best.kind == "crashed" and best.rank is not None:
        inner = next((f for f in findings if f.kind == "crashed" and f is not best and f.rank == best.rank), None)
        cause = to_cause(with_reason(best, findings, logs), facts)
        return replace(cause, evidence=(*evidence_lines(inner), *evidence_lines(best)))
    if best.kind == "collective-timeout":
        cause = _hang(best, find_absent_ranks(findings, logs, facts), facts, findings)
        unknown = cause.rank is None and cause.advice != NO_TRAFFIC
        return _with_none_completed(cause) if unknown and none_completed(logs) else cause
    if best.kind in ("worker", "refused"):
        return to_cause(best, facts)
    cause = to_cause(with_task(with_reason(best, findings, logs), findings, facts), facts)
    unopened = (f for f in findings if best.kind == "address-in-use" and "can't open file" in f.line.text)
    if (script := next(unopened, None)) is not None:  # neither follows from the other
        cause = replace(cause, sentence=f"{cause.sentence}; besides, {script.sentence}")
    return _with_lost_rendezvous(cause, best, findings)


def _with_lost_rendezvous(cause: Cause, best: LogFinding, findings: Sequence[LogFinding]) -> Cause:
    """Return the cause with the torchrun that then lost the others, if torchrun reports a signal without a host."""
    lost = next((f for f in findings if f.values.get("agent") and f.index > best.index), None)
    if lost is None or "failed (exitcode: -" not in best.line.text:
        return cause
    return replace(cause, sentence=f"{cause.sentence}; then {lost.sentence}", evidence=(*cause.evidence, lost.line))


def _may_be_same_task(task: LogFinding, memory: LogFinding) -> bool:
    """Return whether a line on memory, which names a node at most, can be about that task."""
    return not memory.node or (task.node in ("", memory.node) and len(task.ranks) < 2)


def with_task(best: LogFinding, findings: Sequence[LogFinding], facts: EndFacts) -> LogFinding:
    """Return a cause without a rank with the rank that left no record, or the task that srun reports first."""
    ended_here = best.strength is Strength.CAUSE or best.place  # an exception ends its rank, hints need not
    if best.rank is not None or not ended_here or best.kind in BY_STATE.values():
        return best
    pid = best.values.get("pid")
    named = (f for f in findings if pid and f.rank is not None and f.values.get("pid") == pid)
    same = next((f for f in named if best.node in ("", f.node)), None)
    if same is not None:  # mpirun knows the rank of a process
        return replace(best, rank=same.rank, node=same.node)
    silent = silent_ranks(facts) if best.kind in ("killed", "crashed") else []
    if len(silent) == 1:
        return replace(best, rank=silent[0])
    if best.kind == "cuda-assert":  # the GPU's own lines have no rank; the exception after them has
        raised = next((f for f in findings if f.kind == best.kind and (f.rank is not None or f.place)), None)
        if raised is not None:
            return replace(best, rank=raised.rank, place=best.place or raised.place)
    ended = (f for f in findings if f.index > best.index and f.kind in ("crashed", "task-ended") and f.ranks)
    task = next((f for f in ended if f.kind == "crashed" or f.values.get("status")), None)
    if task is None or task.kind == "crashed" or len(task.ranks) != 1 or best.node not in ("", task.node):
        return best  # crashed: of which it need not be the reason
    return replace(best, rank=task.rank, node=task.node)


def _mentions_kill(text: str) -> bool:
    words = ("SIGKILL", "exit code -9", "signal: Killed", "was terminated abruptly", "exited unexpectedly")
    return any(word in text for word in words)


def _with_none_completed(cause: Cause) -> Cause:
    """Return a hang in which no collective had ever completed: perhaps the ranks cannot exchange data at all."""
    sentence = f"{cause.sentence}; no earlier collective had completed"
    return replace(cause, sentence=sentence, advice=f"if no rank was stuck elsewhere, {NO_TRAFFIC}")


def _hang(best: LogFinding, missing: AbsentRanks | None, facts: EndFacts, findings: Sequence[LogFinding]) -> Cause:
    cause = to_cause(best, facts)
    waited = f"; a waiting rank was at {cause.place}" if cause.place else ""
    if missing is None:
        who = split_rank(best.line)[0]  # the rank in the message counts within its process group
        where = f" on {cause.node}" if cause.node else ""
        reported = "" if who is None else f"; rank {who}{where} reported the timeout first"
        if all_waited(findings, facts):
            called = f"though each of the {facts.world_size} ranks had called the collective"
            sentence = f"{cause.sentence}, {called}{waited}"
            cause = replace(cause, advice=NO_TRAFFIC)
        else:
            unknown = f"the logs do not show which rank was missing{reported}"
            calls = waiting_calls(findings) or spared_ranks(findings, facts) or unknown
            sentence = f"{cause.sentence}; {calls}{waited}"
        return replace(cause, rank=None, node="", place="", sentence=sentence, command="clusterrun logs JOB -n 50")
    first = missing.ranks[0]
    return replace(
        cause,
        rank=first,
        node=facts.nodes.get(first, ""),
        place="",
        sentence=f"{cause.sentence}: {format_ranks(missing.ranks, facts)} did not join ({missing.how}){waited}",
        command=f"clusterrun logs JOB --rank {first} -n 50",
    )


def to_cause(finding: LogFinding, facts: EndFacts) -> Cause:
    node = finding.node or (facts.nodes.get(finding.rank, "") if finding.rank is not None else "")
    command = finding.command
    if "{node}" in finding.row.command and not finding.values.get("node"):
        command = fill_template(finding.row.command, {**finding.values, "node": node or "NODE"})
    elif node:
        command = command.replace("NODE", node)
    return Cause(
        kind=finding.kind,
        sentence=finding.sentence,
        rank=None if finding.kind == "no-process-group" else finding.rank,  # it is about all ranks
        node=node,
        place=finding.place,
        evidence=evidence_lines(finding),
        advice=finding.advice,
        command=command,
        source=finding.row.source,
    )


def evidence_lines(finding: LogFinding | None) -> tuple[Line, ...]:
    return () if finding is None or not finding.line.text else (finding.line,)


def format_ranks(ranks: Sequence[int], facts: EndFacts) -> str:
    """Return ``rank 0 on n1, rank 3 on n2``, at most four; of more ranks on unknown nodes all, as ``ranks 0-7``."""
    if len(ranks) > 4 and not any(rank in facts.nodes for rank in ranks):
        return name_ranks(ranks)
    named = [f"rank {rank} on {node}" if (node := facts.nodes.get(rank)) else f"rank {rank}" for rank in ranks[:4]]
    return ", ".join(named) + (" …" if len(ranks) > 4 else "")


def silent_ranks(facts: EndFacts) -> list[int]:
    """Return the ranks without an end record, if they are at most half."""
    if not facts.ends or not facts.world_size or facts.world_size > 1_000_000:
        return []
    silent = sorted(set(range(facts.world_size)) - {end.rank for end in facts.ends})
    return silent if 2 * len(silent) <= facts.world_size else []
