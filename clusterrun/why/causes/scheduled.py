"""What the scheduler did to a job: a limit, a preemption, a lost node, a cancel; unless a rank had failed before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from clusterrun.why.causes.describe import evidence_lines, format_ranks, full_cause, to_cause
from clusterrun.why.causes.evidence import Evidence, first
from clusterrun.why.causes.last_lines import last_line_of_most
from clusterrun.why.causes.match import FIRST_OF_KIND, make_finding
from clusterrun.why.causes.model import Cause, EndFacts, Line, LogFinding, Logs, Strength
from clusterrun.why.causes.nan_series import NAN
from clusterrun.why.causes.table_python import EXCEPTION

#: what slurmd writes into the log of a batch job whose prolog failed
_PROLOG_LINE = re.compile(r"Error running slurm prolog: \d+")
_PROLOG_FAILED = Cause(
    kind="launch-failed",
    sentence="the prolog failed on the job's first node, so Slurm drained the node and cancelled the job",
    advice="submit the job again; with --requeue Slurm holds such a job instead, and `scontrol release` starts it",
    command="clusterrun submit …",
    source="Slurm 22.05, observed on a cluster",
)
_WAITED = (
    "find out what that line waits for: more time does not help if the job does not have it (such as cores or GPUs);"
    " otherwise, "
)
_OF_NODE = ("cuda-error", "nccl-error", "network")  # errors that a failing node causes
_UNMARKED = {
    "time-limit": "the job reached its time limit",
    "preemption": "the job was preempted: a higher-priority job took its nodes",
    "node-failure": "one of the job's nodes failed",
    "cancelled": "the job was cancelled",
    "host-memory": "host memory ran out",
    "deadline": "the job's deadline passed",
    "launch-failed": "Slurm could not start the job",
}
#: the advice and the command of kinds that have no row of their own for this case
_ADVICE = {
    "deadline": ("submit the job with a later --deadline, or request less time", "scontrol show job JOB"),
    "launch-failed": ("look for Slurm's reason, and try other nodes", "scontrol show job JOB"),
}


def scheduler_cause(kind: str, evidence: Evidence) -> Cause:
    """Return what the scheduler did to the job, unless a rank had failed before. ``kind`` is that of the cause."""
    mark = evidence.of_kind(kind)
    earlier = _failed_before(mark, evidence) if mark is not None else _before_start(kind, evidence)
    if earlier is not None:
        return earlier
    cause = full_cause(mark, evidence) if mark is not None else to_cause(_unmarked(kind), evidence.facts)
    if kind == "node-failure" and evidence.facts.lost_nodes:
        return _with_lost_nodes(cause, evidence.facts.lost_nodes)
    if kind == "cancelled":
        cause = _with_canceller(cause, mark, evidence)
    return _with_what_was_before(cause, kind, evidence)


def _before_start(kind: str, evidence: Evidence) -> Cause | None:
    """Return what a job was requeued for, or the prolog that failed, before it was cancelled without having started."""
    if kind != "cancelled":
        return None
    earlier = evidence.of_kind("preemption", "requeued", "interrupted")
    if earlier is not None:
        return replace(to_cause(earlier, evidence.facts), sentence=f"{earlier.sentence}; then the job was cancelled")
    line = _failed_prolog(evidence.logs) if not evidence.findings else None
    return replace(_PROLOG_FAILED, evidence=(line,)) if line is not None else None


def _failed_prolog(logs: Logs) -> Line | None:
    """Return the line of a prolog that failed, if it is the last of its log."""
    for lines in logs:
        if lines and _PROLOG_LINE.fullmatch(lines[-1].text.strip()):
            return lines[-1]
    return None


def _failed_before(mark: LogFinding, evidence: Evidence) -> Cause | None:
    """Return the failure that a log shows before the mark of the scheduler, followed by the mark."""
    if mark.kind == "host-memory":
        return None
    for findings in evidence.by_log:
        here = first(findings, lambda f: f.kind == mark.kind)
        earlier = _first_serious(here, evidence) if here is not None else None
        if earlier is not None:
            return _then_marked(full_cause(earlier, evidence), mark, here)
    return None


def _first_serious(mark: LogFinding, evidence: Evidence) -> LogFinding | None:
    """Return the first failure before a mark; ranks also time out because they wait for a lost node."""
    most = Strength.CAUSE if mark.kind in ("node-failure", "preemption") else Strength.HANG
    for finding in evidence.before(mark):
        if finding.strength <= most and not finding.survived:
            is_of_cancel = mark.kind == "cancelled" and finding.kind == "interrupted"
            return None if is_of_cancel else finding
    return None


def _then_marked(cause: Cause, mark: LogFinding, here: LogFinding | None) -> Cause:
    """Return an earlier failure, and that the scheduler then ended the job."""
    if mark.kind == "node-failure" and cause.kind in _OF_NODE:
        advice = f"the failing node probably caused this error; {mark.advice}"
        cause = replace(cause, advice=advice, command=mark.command)
    evidence = (*cause.evidence, *evidence_lines(here))[:4]
    return replace(cause, sentence=f"{cause.sentence}; then {mark.sentence}", evidence=evidence)


def _with_lost_nodes(cause: Cause, nodes: Sequence[str]) -> Cause:
    return replace(
        cause,
        sentence=f"node{'s' * (len(nodes) > 1)} {', '.join(nodes)} failed",
        node=nodes[0],
        command=f"clusterrun submit … --exclude {','.join(nodes)} --requeue",
    )


def _with_canceller(cause: Cause, mark: LogFinding | None, evidence: Evidence) -> Cause:
    """Return a cancelled job with who cancelled it, and the task that had ended before."""
    user = evidence.facts.cancelled_by
    if user:
        cause = replace(cause, sentence=f"{cause.sentence} by {user}", advice="", command="clusterrun submit …")
    for finding in evidence.before(mark) if mark is not None else ():
        if finding.is_ended_task and finding.line.text.startswith("srun: "):
            return _before_that(cause, finding)
    return cause


def _before_that(cause: Cause, finding: LogFinding) -> Cause:
    sentence = f"{cause.sentence}; before that, {finding.sentence}"
    return replace(cause, sentence=sentence, evidence=(*cause.evidence, *evidence_lines(finding)))


def _with_what_was_before(cause: Cause, kind: str, evidence: Evidence) -> Cause:
    """Return the cause with what the job did until then: hung, repeated a line, or trained on a NaN loss."""
    if kind in ("time-limit", "cancelled"):
        cause = _with_stalled_rank(cause, evidence.facts)
    if kind == "time-limit":
        cause = _with_last_line(cause, evidence.logs)
    turned = evidence.first(lambda f: f.row is NAN)
    if turned is not None and kind in ("time-limit", "cancelled", "preemption"):
        return _before_that(cause, turned)
    return cause


def _with_stalled_rank(cause: Cause, facts: EndFacts) -> Cause:
    if not facts.behind:
        return cause
    rank = min(facts.behind)
    hung = f"before that, the job hung waiting for {format_ranks([rank], facts)} ({facts.behind[rank]})"
    return replace(cause, sentence=f"{cause.sentence}; {hung}", rank=rank, node=facts.node_of(rank))


def _with_last_line(cause: Cause, logs: Logs) -> Cause:
    """Return a time limit with the last line of most ranks; if they repeated it, more time alone may not help."""
    words, repeated = last_line_of_most(logs)
    if not words:
        return cause
    cause = replace(cause, sentence=f"{cause.sentence}; {words}")
    return replace(cause, advice=f"{_WAITED}{cause.advice}", command="clusterrun logs JOB -n 50") if repeated else cause


def _unmarked(kind: str) -> LogFinding:
    """Return the finding for what the scheduler did if no line of the logs shows it."""
    row = FIRST_OF_KIND.get(kind, EXCEPTION)
    if kind in _ADVICE:
        advice, command = _ADVICE[kind]
        row = replace(row, advice=advice, command=command, source="the job's state in Slurm")
    finding = make_finding(replace(row, kind=kind), 0, Line("", None, None, ""), {})
    return replace(finding, sentence=_UNMARKED[kind], command=row.command)
