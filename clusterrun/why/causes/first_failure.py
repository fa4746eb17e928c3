"""The finding that explains a job's end best: the first failure, or what is behind it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from clusterrun.run_folder.ends import Failure
from clusterrun.why.causes.context import with_earlier_report
from clusterrun.why.causes.evidence import Evidence, first, line_of, recorded_finding, searched_part
from clusterrun.why.causes.match import classify, make_finding
from clusterrun.why.causes.model import LogFinding, Strength
from clusterrun.why.causes.nan_series import NAN
from clusterrun.why.causes.table_launch import TERMINATE
from clusterrun.why.causes.table_peers import PEER_LOST
from clusterrun.why.causes.table_python import BARE, EXCEPTION, EXIT
from clusterrun.why.causes.table_recorded import RECORDED

_SILENT = frozenset({"killed", "crashed", "gpu-fault", "node-failure"})  # a rank records no failure in these cases
_OF_NAN = re.compile(r"(?i)\b(?:nan|inf|infinity|infinite)\b")
#: hints that usually follow from another hint
_LATER = {"nan-loss": 1, "crashed": 1, "interrupted": 2}
#: how a process ended, and what its GPU, its kernel, Slurm or clusterrun report
_ENDS = frozenset(
    {"killed", "crashed", "gpu-fault", "cuda-assert", "host-memory", "node-failure", "launch-failed", "worker"}
)
#: of these, what no launcher does to the other ranks
_FATAL = frozenset({"crashed", "gpu-fault", "cuda-assert", "host-memory"})
#: what a program may do without, and reports in a line of its own: no traceback, so it continued
_OPTIONAL = frozenset(
    {"import-error", "library-mismatch", "read-only", "permission", "offline", "access", "address-in-use"}
)
_ERROR = re.compile(r"\b(?:ERROR|FATAL|CRITICAL)\b")
#: what is behind findings of a kind, even if its line comes later
_BEHIND = {"disk-full": "shared-memory", "shared-memory": "too-many-files", "cuda-error": "gpu-fault", "usage": "usage"}
_XID_OF_PROGRAMS = frozenset(("13", "31", "43", "45"))
#: an exception that may be due to the time-out
_OF_PEERS = re.compile(r"(?i)nccl|gloo|timed? ?out|connection|process ?group|store|socket|worker|abort")
_NO_ROUTE = re.compile(r"No route to host|Network is unreachable")
#: failures that a time-out cannot cause
_ROOTS = frozenset(
    {"gpu-fault", "node-failure", "cuda-memory", "host-memory", "quota", "disk-full", "library-mismatch"}
)
_LAUNCHER = re.compile(r"\b(?:torchrun|accelerate|deepspeed|mpirun|mpiexec|horovodrun|srun|python\d?(?:\.\d+)?)\b")
_ABORTED = re.compile(r"\bsignal 6\b|SIGABRT|crashed: Aborted")
#: an exception that only notices the end of a child process
_WORKER_LOST = re.compile(
    r"(?i)background worker|worker.{0,60}(?:exited|killed|died|dead)|terminated abruptly|^BrokenProcessPool|^EOFError"
    r"|pickle data was truncated$"
)


def find_first_failure(evidence: Evidence) -> LogFinding | None:
    """Return the recorded failure of the rank that failed first, else the earliest one; or what is behind it."""
    failure = evidence.facts.failure
    finding = _earliest(evidence) if failure is None else _of_record(failure, evidence)
    if finding is None:
        return None
    return with_earlier_report(_behind(finding, evidence), evidence)


# -- the record ------------------------------------------------------------------------------------------------------


def _of_record(failure: Failure, evidence: Evidence) -> LogFinding | None:
    """Return a recorded failure as the logs show it; if it only follows from another one, the earliest in the logs."""
    recorded = _recorded(failure, evidence)
    if recorded.strength is Strength.CAUSE:
        return _in_logs(recorded, failure, evidence)
    earliest = _earliest(evidence)
    if earliest is None and recorded.strength is Strength.HINT:
        return recorded
    return earliest


def _recorded(failure: Failure, evidence: Evidence) -> LogFinding:
    """Return the finding of the rank that failed first by its record: of its kind, else by the exception's text."""
    if failure.kind in RECORDED:
        return recorded_finding(failure, RECORDED[failure.kind], evidence.logs)
    line = line_of(failure)
    finding = classify(failure.error) or make_finding(EXCEPTION, 0, line, {"error": failure.error}, failure.rank)
    return replace(finding, line=line, rank=failure.rank, place=failure.place)


def _in_logs(recorded: LogFinding, failure: Failure, evidence: Evidence) -> LogFinding:
    """Return the finding of a recorded failure in the logs, or of what failed before it; else the record's."""
    near = _near_record(failure, evidence)
    if not near:
        return recorded
    for finding in evidence.before(near[0]):
        if finding.rank != recorded.rank and finding.kind in _SILENT and finding.is_fatal:
            return finding
    last = near[-1]
    return replace(last, place=last.place or recorded.place)


def _near_record(failure: Failure, evidence: Evidence) -> list[LogFinding]:
    """Return the rank's failures that repeat the recorded text, else those that it did not survive.

    A line has two ranks if a command started a launcher: the label is the failed task, the prefix a rank of its own.
    """
    failures = [f for f in evidence.findings if _is_failure_of(failure.rank, f)]
    shown = searched_part(failure.error)
    repeated = [f for f in failures if shown in f.line.text]
    return repeated or [f for f in failures if f.is_fatal]


def _is_failure_of(rank: int | None, finding: LogFinding) -> bool:
    return finding.strength is Strength.CAUSE and rank in (finding.rank, finding.line.rank)


# -- the earliest ----------------------------------------------------------------------------------------------------


def _earliest(evidence: Evidence) -> LogFinding | None:
    """Return the earliest of the strongest findings of each log, and of those the strongest; the first log wins."""
    chosen = [_earliest_of_log(findings, evidence) for findings in evidence.by_log]
    return min(filter(None, chosen), key=lambda f: (f.strength, f.row is EXCEPTION, _later(f)), default=None)


def _earliest_of_log(findings: Sequence[LogFinding], evidence: Evidence) -> LogFinding | None:
    """Return the first failure in a log that ended its rank, else one soon before the rank's end, else a hint."""
    able = [f for f in findings if _may_have_ended_it(f, evidence)]
    return min(able, key=_order_of_log, default=None)


def _may_have_ended_it(finding: LogFinding, evidence: Evidence) -> bool:
    """Return whether a finding's rank did not continue, or not for long in a job that ended."""
    if finding.warned and not evidence.has_failed:
        return False
    if not finding.survived:
        return True
    return bool(evidence.facts.state) and finding.strength <= Strength.HANG and not finding.outlived


def _order_of_log(finding: LogFinding) -> tuple[Strength, bool, int, bool, int]:
    weakness = max(finding.strength, Strength.HANG)
    return weakness, finding.survived, _later(finding), finding.row is PEER_LOST, finding.index


def _later(finding: LogFinding) -> int:
    return _LATER.get(finding.kind, 0) if finding.strength >= Strength.HINT else 0


# -- what is behind it -----------------------------------------------------------------------------------------------


def _behind(finding: LogFinding, evidence: Evidence) -> LogFinding:
    """Return a finding that explains more: than a time-out, an exit status or an error about NaN."""
    if finding.strength is Strength.HANG:
        return _root_of_hang(evidence) or finding
    better = _missing_launcher(evidence) if finding.kind == "file-missing" else _later_exception(finding, evidence)
    return better or _noticed(finding, evidence) or _behind_kind(finding, evidence) or finding


def _behind_kind(finding: LogFinding, evidence: Evidence) -> LogFinding | None:
    """Return what is behind a finding of this kind, even if its line comes later."""
    if finding.row is EXIT:
        return _behind_exit(finding, evidence)
    if finding.row in (EXCEPTION, BARE) and _OF_NAN.search(finding.sentence):
        return evidence.first(lambda f: f.row is NAN)
    return evidence.first(lambda f: not f.survived and _explains(f, finding.kind))


def _explains(behind: LogFinding, kind: str) -> bool:
    """Return whether a finding is what is behind those of a kind."""
    if behind.kind != _BEHIND.get(kind) or behind.values.get("xid") in _XID_OF_PROGRAMS:
        return False
    # an option on a line of its own, which the shell took for a command
    return kind != "usage" or "command not found" in behind.line.text


def _behind_exit(finding: LogFinding, evidence: Evidence) -> LogFinding | None:
    """Return what explains a program's exit status: a missing command, a bare line, a thread's exception, a NaN."""
    missing = evidence.missing_command(evidence.facts.failed_status)
    if missing is not None:
        return missing
    hint = _earliest(evidence)
    if hint is not None and _explains_exit(hint, finding):
        return hint
    return evidence.first(lambda f: f.row is NAN)


def _explains_exit(hint: LogFinding, finding: LogFinding) -> bool:
    """Return whether a hint says more than an exit: a bare line, or an exception of a thread before a mere status."""
    in_thread = hint.row is EXCEPTION and hint.strength is Strength.HINT and hint.rank in (None, finding.rank)
    return hint.row is BARE or (in_thread and "status" in finding.values)


def _missing_launcher(evidence: Evidence) -> LogFinding | None:
    """Return the launcher that the shell did not find: its ranks would have written the missing file."""
    finding = evidence.first(lambda f: f.kind == "command-missing" and _LAUNCHER.search(f.sentence) is not None)
    return None if finding is None else replace(finding, row=replace(finding.row, strength=Strength.CAUSE))


def _noticed(finding: LogFinding, evidence: Evidence) -> LogFinding | None:
    """Return what an abort of NCCL's watchdog or an exception about a dead worker only noticed."""
    if finding.kind == "crashed" and _ABORTED.search(finding.sentence):
        hang = evidence.first(lambda f: f.strength is Strength.HANG)
        return hang or _with_lost_peer(finding, evidence)
    if finding.row in (EXCEPTION, BARE) and _WORKER_LOST.search(finding.sentence):
        return evidence.of_kind("host-memory") or first(evidence.before(finding), lambda f: f.row is TERMINATE)
    return None


def _with_lost_peer(finding: LogFinding, evidence: Evidence) -> LogFinding:
    """Return the task whose end NCCL noticed before the abort; else the abort, with the peer if it is another node."""
    peer = evidence.first(lambda f: f.kind == "peer-lost" and f.values.get("peer", "").find("<") > 0)
    if peer is None:
        return finding
    host = peer.values["peer"].partition("<")[0]
    if finding.node and host.startswith(finding.node):
        return finding
    ended = evidence.first(lambda f: f.is_ended_task and bool(f.node) and host.startswith(f.node))
    if ended is not None:
        sentence = f"{ended.sentence}; the other ranks then lost the connection to that node"
        return replace(ended, strength=Strength.CAUSE, sentence=sentence)
    return replace(finding, sentence=f"a rank lost the connection to {host}; then {finding.sentence}")


def _later_exception(finding: LogFinding, evidence: Evidence) -> LogFinding | None:
    """Return the same rank's exception after a bare line, which other programs print too and the rank may survive."""
    if _shows_end(finding):
        return None
    _, findings = evidence.log_of(finding)
    later = [f for f in findings if f.index > finding.index and f.is_fatal]
    for raised in later:
        if raised.row is EXCEPTION and raised.rank == finding.rank:
            return raised
    return _end_after(finding, later) if finding.kind in _OPTIONAL else None


def _shows_end(finding: LogFinding) -> bool:
    """Return whether a finding shows how its process ended: it is no bare line."""
    return bool(finding.place) or finding.kind in _ENDS or _ERROR.search(finding.line.text) is not None


def _end_after(finding: LogFinding, later: Sequence[LogFinding]) -> LogFinding | None:
    """Return how the rank ended after it did without something that is optional, with that."""
    of_rank = [f for f in later if finding.rank in (None, f.rank) and f.kind != finding.kind]
    ended = first(of_rank, lambda f: bool(f.place) or f.kind in _FATAL)
    if ended is None or ended.row is EXCEPTION:
        return ended
    if ended.kind == "crashed":  # of which the line before it may be the reason
        return replace(finding, sentence=f"{finding.sentence}; then {ended.sentence}")
    return replace(ended, sentence=f"{ended.sentence}; before that: {finding.sentence}")


def _root_of_hang(evidence: Evidence) -> LogFinding | None:
    """Return the failure that a time-out cannot cause: ranks waited for it, even if its line comes later."""
    relevant = [f for f in evidence.findings if not f.survived and not f.warned]
    root = first(relevant, lambda f: f.kind in _ROOTS and f.is_fatal)
    return _exception_of_absent_rank(relevant) or root or first(relevant, _is_broken_link)


def _exception_of_absent_rank(findings: Sequence[LogFinding]) -> LogFinding | None:
    """Return the exception of a rank that waited in no collective: the others waited for it."""
    waiting = {f.rank for f in findings if f.strength is Strength.HANG}
    if None in waiting:
        return None
    for finding in findings:
        is_failure = finding.row is EXCEPTION and finding.is_fatal
        if is_failure and finding.rank not in (None, *waiting) and not _OF_PEERS.search(finding.sentence):
            return finding
    return None


def _is_broken_link(finding: LogFinding) -> bool:
    """Return whether a finding is about a network that does not work, rather than about a rank that has ended."""
    is_broken = "status" in finding.values or _NO_ROUTE.search(finding.sentence) is not None
    return finding.kind == "network" and is_broken
