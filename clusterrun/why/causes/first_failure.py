"""The finding that explains a job's end best: the first failure, or what is behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from clusterrun.run_folder.ends import Failure
from clusterrun.why.causes.context import with_earlier_report
from clusterrun.why.causes.evidence import Evidence, first
from clusterrun.why.causes.match import classify, make_finding
from clusterrun.why.causes.model import LogFinding, Strength
from clusterrun.why.causes.nan_series import NAN
from clusterrun.why.causes.recorded import RECORDED, line_of, recorded_finding, searched_part
from clusterrun.why.causes.table_launch import TERMINATE
from clusterrun.why.causes.table_peers import PEER_LOST
from clusterrun.why.causes.table_python import BARE, EXCEPTION, EXIT

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
    found = _recorded_failure(evidence) or _earliest(evidence)
    if found is None:
        return _failure_in_words(evidence.facts.failure)
    return with_earlier_report(_behind(found, evidence), evidence)


# -- the record ------------------------------------------------------------------------------------------------------


def _recorded_failure(evidence: Evidence) -> LogFinding | None:
    """Return the recorded failure of the rank that failed first; None if it only noticed another's end."""
    failure = evidence.facts.failure
    if failure is None:
        return None
    row = RECORDED.get(failure.kind)
    known = recorded_finding(failure, row, evidence.logs) if row is not None else _in_words(failure)
    if known.strength is not Strength.CAUSE:
        return None
    near = _near_record(failure, evidence)
    killed = _killed_before(near[0], failure.rank, evidence) if near else None
    if killed is not None:
        return killed
    if near:
        return replace(near[-1], place=near[-1].place or failure.place)
    return known


def _in_words(failure: Failure) -> LogFinding:
    """Return the finding of a recorded exception: of the row that its text matches, else of the exception itself."""
    line = line_of(failure)
    known = classify(failure.error) or make_finding(EXCEPTION, 0, line, {"error": failure.error}, failure.rank)
    return replace(known, line=line, rank=failure.rank, place=failure.place)


def _failure_in_words(failure: Failure | None) -> LogFinding | None:
    """Return the recorded failure if its words hint at a cause, for a job whose logs say nothing."""
    known = _in_words(failure) if failure is not None else None
    return known if known is not None and known.strength is Strength.HINT else None


def _near_record(failure: Failure, evidence: Evidence) -> list[LogFinding]:
    """Return the rank's failures that repeat the recorded text, else those that it did not survive.

    A line has two ranks if a command started a launcher: the label is the failed task, the prefix a rank of its own.
    """
    failures = [f for f in evidence.findings if f.strength is Strength.CAUSE and failure.rank in (f.rank, f.line.rank)]
    shown = searched_part(failure.error)
    repeated = [f for f in failures if shown in f.line.text]
    return repeated if repeated and shown else [f for f in failures if not f.survived]


def _killed_before(near: LogFinding, rank: int | None, evidence: Evidence) -> LogFinding | None:
    """Return a kill, a crash or a faulty device of another rank before the recorded failure."""

    def is_earlier_kill(finding: LogFinding) -> bool:
        is_failure = finding.strength is Strength.CAUSE and not finding.survived
        return is_failure and finding.index < near.index and finding.kind in _SILENT and finding.rank != rank

    return first(evidence.beside(near), is_earlier_kill)


# -- the earliest ----------------------------------------------------------------------------------------------------


def _earliest(evidence: Evidence) -> LogFinding | None:
    """Return the earliest of the strongest findings of each log, and of those the strongest; the first log wins."""
    chosen = [found for findings in evidence.by_log if (found := _earliest_of_log(findings, evidence)) is not None]
    return min(chosen, key=lambda f: (f.strength, f.row is EXCEPTION, _later(f)), default=None)


def _earliest_of_log(findings: Sequence[LogFinding], evidence: Evidence) -> LogFinding | None:
    if not _has_failed(evidence):
        findings = [f for f in findings if not f.warned]
    lasting = _lasting_failures(findings, bool(evidence.facts.state))
    if lasting:
        return min(lasting, key=lambda f: f.index)
    weak = [f for f in findings if not f.survived]
    return min(weak, key=lambda f: (f.strength, _later(f), f.row is PEER_LOST, f.index), default=None)


def _lasting_failures(findings: Sequence[LogFinding], has_state: bool) -> list[LogFinding]:
    """Return the failures that no rank survived; if there are none in a job with a state, those without much after."""
    serious = [f for f in findings if f.strength <= Strength.HANG]
    lasting = [f for f in serious if not f.survived]
    return [f for f in serious if not f.outlived] if has_state and not lasting else lasting


def _has_failed(evidence: Evidence) -> bool:
    """Return whether the job is known to have failed: else a warning is no cause."""
    is_serious = any(f.strength <= Strength.HANG for f in evidence.findings)
    return is_serious or bool(evidence.facts.state or evidence.facts.exit_status)


def _later(finding: LogFinding) -> int:
    return _LATER.get(finding.kind, 0) if finding.strength >= Strength.HINT else 0


# -- what is behind it -----------------------------------------------------------------------------------------------


def _behind(found: LogFinding, evidence: Evidence) -> LogFinding:
    """Return a finding that explains more: than a time-out, an exit status or an error about NaN."""
    if found.strength is Strength.HANG:
        return _root_of_hang(evidence) or found
    better = _missing_launcher(evidence) if found.kind == "file-missing" else _later_exception(found, evidence)
    return better or _noticed(found, evidence) or _behind_kind(found, evidence) or found


def _behind_kind(found: LogFinding, evidence: Evidence) -> LogFinding | None:
    """Return what is behind a finding of this kind, if a line shows it."""
    if found.kind in _BEHIND:
        is_behind = _BEHIND[found.kind]
        return evidence.first(lambda f: is_behind(f) and not f.survived)
    if found.row is EXIT:
        return _behind_exit(found, evidence)
    is_of_nan = found.row in (EXCEPTION, BARE) and _OF_NAN.search(found.sentence)
    return _nan_start(evidence) if is_of_nan else None


def _nan_start(evidence: Evidence) -> LogFinding | None:
    return evidence.first(lambda f: f.row is NAN)


def _is_option_as_command(finding: LogFinding) -> bool:
    return finding.kind == "usage" and "command not found" in finding.line.text


def _is_fault_of_device(finding: LogFinding) -> bool:
    return finding.kind == "gpu-fault" and finding.values.get("xid") not in _XID_OF_PROGRAMS


#: what is behind a kind of finding, even if its line comes later
_BEHIND: dict[str, Callable[[LogFinding], bool]] = {
    "usage": _is_option_as_command,
    "disk-full": lambda f: f.kind == "shared-memory",
    "shared-memory": lambda f: f.kind == "too-many-files",
    "cuda-error": _is_fault_of_device,
}


def _behind_exit(found: LogFinding, evidence: Evidence) -> LogFinding | None:
    """Return what explains a program's exit status: a missing command, a bare line, a thread's exception, a NaN."""
    failure = evidence.facts.failure
    missing = [f for f in evidence.findings if f.kind == "command-missing"]
    if missing and failure is not None and failure.status in (126, 127):
        return missing[-1]
    hint = _earliest(evidence)
    if hint is not None and _explains_exit(hint, found):
        return hint
    return _nan_start(evidence)


def _explains_exit(hint: LogFinding, found: LogFinding) -> bool:
    """Return whether a hint says more than an exit: a bare line, or an exception of a thread before a mere status."""
    in_thread = hint.row is EXCEPTION and hint.strength is Strength.HINT and hint.rank in (None, found.rank)
    return hint.row is BARE or (in_thread and "status" in found.values)


def _missing_launcher(evidence: Evidence) -> LogFinding | None:
    """Return the launcher that the shell did not find: its ranks would have written the missing file."""
    found = evidence.first(lambda f: f.kind == "command-missing" and _LAUNCHER.search(f.sentence) is not None)
    return None if found is None else replace(found, row=replace(found.row, strength=Strength.CAUSE))


def _noticed(found: LogFinding, evidence: Evidence) -> LogFinding | None:
    """Return what an abort of NCCL's watchdog or an exception about a dead worker only noticed."""
    if found.kind == "crashed" and _ABORTED.search(found.sentence):
        hang = evidence.first(lambda f: f.strength is Strength.HANG and not f.survived)
        return hang or _with_lost_peer(found, evidence)
    if found.row in (EXCEPTION, BARE) and _WORKER_LOST.search(found.sentence):
        killed = evidence.first(lambda f: f.kind == "host-memory" and f.strength is Strength.CAUSE)
        return killed or evidence.first(lambda f: f.row is TERMINATE and f.index < found.index)
    return None


def _with_lost_peer(found: LogFinding, evidence: Evidence) -> LogFinding:
    """Return the task whose end NCCL noticed before the abort; else the abort, with the peer if it is another node."""
    peer = evidence.first(lambda f: f.kind == "peer-lost" and "<" in f.values.get("peer", ""))
    host = peer.values["peer"].partition("<")[0] if peer is not None else ""
    if not host or (found.node and host.startswith(found.node)):
        return found
    ended = evidence.first(lambda f: f.is_ended_task and bool(f.node) and host.startswith(f.node))
    if ended is not None:
        sentence = f"{ended.sentence}; the other ranks then lost the connection to that node"
        return replace(ended, strength=Strength.CAUSE, sentence=sentence)
    return replace(found, sentence=f"a rank lost the connection to {host}; then {found.sentence}")


def _later_exception(found: LogFinding, evidence: Evidence) -> LogFinding | None:
    """Return the same rank's exception after a bare line, which other programs print too and the rank may survive."""
    if not _is_bare_line(found):
        return None
    later = [f for f in evidence.beside(found) if f.index > found.index and _ends_its_rank(f)]
    raised = first(later, lambda f: f.row is EXCEPTION and f.rank == found.rank)
    is_optional = found.kind in _OPTIONAL and "can't open file" not in found.line.text
    return raised if raised is not None or not is_optional else _end_after(found, later)


def _is_bare_line(finding: LogFinding) -> bool:
    """Return whether a finding is a line that does not show how its process ended."""
    shows_end = finding.place or finding.kind in _ENDS or _ERROR.search(finding.line.text)
    return not shows_end


def _ends_its_rank(finding: LogFinding) -> bool:
    return finding.strength is Strength.CAUSE and not finding.survived


def _end_after(found: LogFinding, later: Sequence[LogFinding]) -> LogFinding | None:
    """Return how the rank ended after it did without something that is optional, with that."""
    of_rank = [f for f in later if found.rank in (None, f.rank) and f.kind != found.kind]
    ended = first(of_rank, lambda f: bool(f.place) or f.kind in _FATAL)
    if ended is None or ended.row is EXCEPTION:
        return ended
    if ended.kind == "crashed":  # of which the line before it may be the reason
        return replace(found, sentence=f"{found.sentence}; then {ended.sentence}")
    return replace(ended, sentence=f"{ended.sentence}; before that: {found.sentence}")


def _root_of_hang(evidence: Evidence) -> LogFinding | None:
    """Return the failure that a time-out cannot cause: ranks waited for it, even if its line comes later."""
    relevant = [f for f in evidence.findings if not f.survived and not f.warned]
    root = first(relevant, lambda f: f.kind in _ROOTS and f.strength is Strength.CAUSE)
    return _exception_of_absent_rank(relevant) or root or first(relevant, _is_broken_link)


def _exception_of_absent_rank(findings: Sequence[LogFinding]) -> LogFinding | None:
    """Return the exception of a rank that waited in no collective: the others waited for it."""
    waiting = {f.rank for f in findings if f.strength is Strength.HANG}
    if None in waiting:
        return None
    for finding in findings:
        is_exception = finding.row is EXCEPTION and finding.strength is Strength.CAUSE
        if is_exception and finding.rank not in (None, *waiting) and not _OF_PEERS.search(finding.sentence):
            return finding
    return None


def _is_broken_link(finding: LogFinding) -> bool:
    """Return whether a finding is about a network that does not work, rather than about a rank that has ended."""
    is_hint = finding.kind == "network" and finding.strength is Strength.HINT
    return is_hint and bool(finding.values.get("status") or _NO_ROUTE.search(finding.sentence))
