"""Find what is behind a finding that a rule named: the root of a time-out, a later exception, a dead worker."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

from clusterrun.why.causes.model import LogFinding, Strength
from clusterrun.why.causes.table_launch import TERMINATE
from clusterrun.why.causes.table_python import BARE, EXCEPTION

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
#: what is behind a kind of finding, even if its line comes later
BEHIND: dict[str, Callable[[LogFinding], bool]] = {
    "usage": lambda f: f.kind == "usage" and "command not found" in f.line.text,
    "disk-full": lambda f: f.kind == "shared-memory",
    "shared-memory": lambda f: f.kind == "too-many-files",
    "cuda-error": lambda f: f.kind == "gpu-fault" and f.values.get("xid") not in _XID_OF_PROGRAMS,
}
#: an exception that may be due to the time-out
_OF_PEERS = re.compile(r"(?i)nccl|gloo|timed? ?out|connection|process ?group|store|socket|worker|abort")
_NO_ROUTE = re.compile(r"No route to host|Network is unreachable")
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


def noticed_by(best: LogFinding, findings: Sequence[LogFinding]) -> LogFinding | None:
    """Return what an abort of NCCL's watchdog or an exception about a dead worker only noticed."""
    if best.kind == "crashed" and _ABORTED.search(best.sentence):
        hang = next((f for f in findings if f.strength is Strength.HANG and not f.survived), None)
        return hang or _with_lost_peer(best, findings)
    if best.row in (EXCEPTION, BARE) and _WORKER_LOST.search(best.sentence):
        killed = next((f for f in findings if f.kind == "host-memory" and f.strength is Strength.CAUSE), None)
        return killed or next((f for f in findings if f.row is TERMINATE and f.index < best.index), None)
    return None


def _with_lost_peer(best: LogFinding, findings: Sequence[LogFinding]) -> LogFinding:
    """Return the task whose end NCCL noticed before the abort; else the abort, with the peer if it is another node."""
    peer = next((f.values["peer"] for f in findings if f.kind == "peer-lost" and "<" in f.values.get("peer", "")), "")
    host = peer.partition("<")[0]
    if not host or (best.node and host.startswith(best.node)):
        return best
    tasks = (f for f in findings if f.kind == "task-ended" and f.values.get("status") and f.node)
    ended = next((f for f in tasks if host.startswith(f.node)), None)
    if ended is not None:
        sentence = f"{ended.sentence}; the other ranks then lost the connection to that node"
        return replace(ended, strength=Strength.CAUSE, sentence=sentence)
    return replace(best, sentence=f"a rank lost the connection to {host}; then {best.sentence}")


def later_exception(best: LogFinding, by_file: Sequence[Sequence[LogFinding]]) -> LogFinding | None:
    """Return the same rank's exception after a bare line, which other programs print too and the rank may survive."""
    if best.place or best.kind in _ENDS or _ERROR.search(best.line.text):
        return None
    here = next((found for found in by_file if best in found), ())
    later = [f for f in here if f.strength is Strength.CAUSE and f.index > best.index and not f.survived]
    raised = next((f for f in later if f.row is EXCEPTION and f.rank == best.rank), None)
    if raised is not None or best.kind not in _OPTIONAL or "can't open file" in best.line.text:
        return raised
    mine = (f for f in later if best.rank in (None, f.rank) and f.kind != best.kind and (f.place or f.kind in _FATAL))
    ended = next(mine, None)
    if ended is None or ended.row is EXCEPTION:
        return ended
    if ended.kind == "crashed":  # of which the line before it may be the reason
        return replace(best, sentence=f"{best.sentence}; then {ended.sentence}")
    return replace(ended, sentence=f"{ended.sentence}; before that: {best.sentence}")


def root_of_hang(by_file: Sequence[Sequence[LogFinding]]) -> LogFinding | None:
    """Return the failure that a time-out cannot cause: ranks waited for it, even if its line comes later."""
    found = [f for f in chain(*by_file) if not f.survived and not f.warned]
    waited = {f.rank for f in found if f.strength is Strength.HANG}
    absent = (f for f in found if f.row is EXCEPTION and f.strength is Strength.CAUSE and f.rank not in waited)
    raised = next((f for f in absent if f.rank is not None and not _OF_PEERS.search(f.sentence)), None)
    if None not in waited and raised is not None:
        return raised
    able = [f for f in found if f.kind in _ROOTS and f.strength is Strength.CAUSE]
    network = [f for f in found if f.kind == "network" and f.strength is Strength.HINT]
    broken = [f for f in network if f.values.get("status") or _NO_ROUTE.search(f.sentence)]
    return next(iter(able or broken), None)


def missing_launcher(by_file: Sequence[Sequence[LogFinding]]) -> LogFinding | None:
    """Return the launcher that the shell did not find: its ranks would have written the missing file."""
    missing = (f for f in chain(*by_file) if f.kind == "command-missing" and _LAUNCHER.search(f.sentence))
    return next((replace(f, row=replace(f.row, strength=Strength.CAUSE)) for f in missing), None)
