"""Select the first cause from the findings in the logs and the facts of the end.

In order of preference: what the scheduler did to the job, unless a rank failed before; the recorded failure of the rank
that failed first; the earliest line that names a cause; a wait that timed out; a consequence of another failure; the
exit status. Nothing is guessed: if no line names a cause, the sentence says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from clusterrun.base.job import LAUNCH_FAILURE, LAUNCH_REASON, STOPPED_STATUS
from clusterrun.records.rank_records import Failure
from clusterrun.why.causes.behind import BEHIND, later_exception, missing_launcher, noticed_by, root_of_hang
from clusterrun.why.causes.context import with_earlier_report
from clusterrun.why.causes.describe import BY_DUE, BY_STATE, Logs, evidence_lines, format_ranks, full_cause, to_cause
from clusterrun.why.causes.fallback import fallback_cause
from clusterrun.why.causes.hang import hang_cause
from clusterrun.why.causes.last_lines import last_line_of_most
from clusterrun.why.causes.match import TABLE, classify, make_finding, scan
from clusterrun.why.causes.model import BY_STEPD, Cause, EndFacts, Line, LogFinding, Strength
from clusterrun.why.causes.nan_series import NAN
from clusterrun.why.causes.nodes import with_nodes
from clusterrun.why.causes.recorded import (
    DUPLICATE,
    RECORDED,
    SEPARATE,
    STOPPED,
    find_line,
    recorded_finding,
    with_records,
)
from clusterrun.why.causes.table_launch import ONE_LAUNCHER
from clusterrun.why.causes.table_peers import PEER_LOST
from clusterrun.why.causes.table_python import BARE, EXCEPTION, EXIT

_DUPLICATE = 75  # the status of a script whose run another job already executes


def first_cause(logs: Logs, facts: EndFacts) -> Cause:
    """Return the first cause of a job's end; ``logs`` are the lines of each file, most trusted first."""
    if facts.state == "COMPLETED":
        return _completed(logs, facts)
    if facts.state and facts.state not in _OVER and not facts.exit_status:
        return Cause(kind="none", sentence="the job has not ended")
    by_file = with_records([with_nodes(scan(lines), lines, facts.nodes) for lines in logs], logs, facts)
    findings = list(chain(*by_file))
    known = _recorded_hang(facts) or _from_exit_status(findings, logs, facts)
    if known is not None:
        return known
    kind = BY_STATE.get(facts.state) or BY_DUE.get(facts.due, "")
    if kind:
        return _scheduler_cause(kind, by_file, logs, facts)
    best = _recorded_failure(by_file, logs, facts) or _earliest(by_file, facts)
    if best is not None:
        best = with_earlier_report(_better_finding(best, by_file, findings, facts), logs)
    if best is not None and best.strength in (Strength.CAUSE, Strength.HANG):
        return full_cause(best, findings, logs, facts)
    return fallback_cause(best or _failure_in_words(facts), findings, logs, facts)


_OVER = frozenset((*BY_STATE, "FAILED", "UNKNOWN", "REVOKED", "RECONFIG_FAIL"))


def _recorded_hang(facts: EndFacts) -> Cause | None:
    """Return what the watchdog recorded, unless the scheduler ended the job."""
    return hang_cause(facts.hang) if facts.hang is not None and facts.state in ("FAILED", "") else None


def _failure_in_words(facts: EndFacts) -> LogFinding | None:
    """Return the recorded failure as a finding if its words hint at a cause, for a job whose logs say nothing."""
    failure = facts.failure
    known = classify(failure.error) if failure is not None else None
    if failure is None or known is None or known.strength is not Strength.HINT:
        return None
    line = Line(failure.file or "first_failure.json", None, failure.rank, failure.error)
    return replace(known, line=line, rank=failure.rank, place=failure.place)


#: the first frame of an exception that nobody caught
_MAIN_MODULE = re.compile(r", in (?:<module>|_run_module_as_main)$")
_ENDED = ("task-ended", "crashed", "killed", "interrupted")
_LAST_LINES = 3  # that a batch script prints after its program
_WENT_ON = (
    "the script continued after its program failed, and exited with status 0: add `set -e` to the script, or end it"
    " with the program's status (exit $?)"
)


_TABLE_OF_RANKS = re.compile(r"(?:rank +node +device|\s*\d+ +\S+ +(?:cpu|cuda\S*|.*GPU.*))\s*")


def _separate(separate: Failure, logs: Logs, facts: EndFacts) -> Cause:
    """Return the result of a COMPLETED job whose ranks did not work together."""
    _, seen = find_line(logs, separate.values.get("line", ""))
    last = _last_printed(logs) if separate.values.get("idle") == "True" else None
    sentence, advice = f"no rank used a process group: the job ran as {facts.world_size} separate programs", ""
    if own := separate.values.get("own_world"):
        sentence, advice = f"{sentence} (each rank started {own})", ONE_LAUNCHER
    if last is not None:
        sentence = "no rank used a process group or computed a gradient; the last line that its program printed:"
        sentence = f"{sentence} {last.text.strip()}"
    return Cause(
        kind=SEPARATE.kind, sentence=f"the job is COMPLETED, but {sentence}",
        evidence=tuple(line for line in (last, seen) if line is not None), advice=advice or SEPARATE.advice,
        command=SEPARATE.command, source=SEPARATE.source,
    )  # fmt: skip


def _last_printed(logs: Logs) -> Line | None:
    """Return the last line that the program printed, None if it printed none; a run's logs begin with that of err."""
    for lines in logs:
        for line in reversed(lines):
            if (
                line.text.strip()
                and not line.text.startswith("clusterrun:")
                and not _TABLE_OF_RANKS.fullmatch(line.text)
            ):
                return line
    return None


def _completed(logs: Logs, facts: EndFacts) -> Cause:
    """Return the result of a COMPLETED job: ranks that never met, a process that Slurm killed for memory, or none."""
    if facts.separate is not None:
        return _separate(facts.separate, logs, facts)
    for lines in logs:
        findings = list(scan(lines))
        for found in findings:
            if found.row is NAN:
                return to_cause(replace(found, sentence=f"the job is COMPLETED, but {found.sentence}"), EndFacts())
            if found.kind == "file-missing" and "can't open file" in found.line.text:
                return to_cause(replace(found, sentence=f"the job is COMPLETED, but {found.sentence}"), EndFacts())
            if found.kind == "host-memory" and found.strength is Strength.CAUSE and BY_STEPD.match(found.line.text):
                sentence = f"the job is COMPLETED, but at least one of its processes was killed: {found.sentence}"
                return Cause(kind="none", sentence=sentence, evidence=evidence_lines(found), advice=found.advice)
        if (raised := _last_exception(findings, lines)) is not None:
            sentence = f"the job is COMPLETED, but its program failed: {raised.sentence}"
            return replace(to_cause(replace(raised, sentence=sentence), EndFacts()), advice=_WENT_ON)
    return _failed_step(logs, facts) or Cause(kind="none", sentence="nothing went wrong")


def _failed_step(logs: Logs, facts: EndFacts) -> Cause | None:
    """Return that a step of another tool's job failed, by srun's words; a run's ranks may have started again."""
    if facts.world_size is not None:
        return None
    found = (one for lines in logs for one in scan(lines) if one.kind in _ENDED and _is_sruns(one.line))
    ended = next(found, None)
    if ended is None:
        return None
    sentence = f"the job is COMPLETED, but one of its steps failed: {ended.sentence}"
    cause = to_cause(replace(ended, sentence=sentence), EndFacts())
    return cause if ended.kind == "interrupted" else replace(cause, advice=_WENT_ON)


def _is_sruns(line: Line) -> bool:
    return line.text.startswith(("srun: ", "slurmstepd"))


def _last_exception(findings: Sequence[LogFinding], lines: Sequence[Line]) -> LogFinding | None:
    """Return the exception with which a log ends, but for the last lines of a script that ignores a status."""
    found = [f for f in findings if f.strength is Strength.CAUSE and f.place and not f.survived]
    if not found:
        return None
    at = found[-1].index
    after = [line for line in lines[at + 1 :] if line.text.strip() and not _is_sruns(line)]
    begun = next((i for i in range(at, -1, -1) if "Traceback (most recent call" in lines[i].text), at)
    uncaught = any(_MAIN_MODULE.search(line.text) for line in lines[begun + 1 : begun + 3])
    return found[-1] if uncaught and len(after) <= _LAST_LINES else None


def _from_exit_status(findings: Sequence[LogFinding], logs: Logs, facts: EndFacts) -> Cause | None:
    """Return the cause of an exit status of clusterrun's script, or of a log that could not be opened."""
    if facts.exit_status == STOPPED_STATUS and facts.state in ("", "FAILED"):
        cause = to_cause(recorded_finding(facts.stop or Failure(), STOPPED, logs), facts)
        return cause if facts.stop else replace(cause, sentence="the run saved a checkpoint and stopped", evidence=())
    if facts.exit_status == _DUPLICATE and facts.other_owner:
        return to_cause(recorded_finding(Failure(values={"other": facts.other_owner}), DUPLICATE, logs), facts)
    # without accounting Slurm soon forgets the exit code; the reason that was seen in the queue remains
    unlaunched = facts.reason == LAUNCH_REASON and facts.exit_status is None and not facts.ends
    if (facts.exit_status == LAUNCH_FAILURE or unlaunched) and not findings:
        unstarted = "Slurm could not start the job on its node (JobLaunchFailure); the log folder is probably missing"
        unopened = "Slurm could not open the job's log files, so the job never ran (exit code 0:53)"
        return Cause(
            kind="log-unopened",
            sentence=unstarted if unlaunched else unopened,
            advice="check that the log folder exists, is writable on the compute nodes and is not on a full disk",
            command="ls -ld logs; df -h .; quota -s",
            source="Slurm 22.05, observed on a cluster",
        )
    return None


#: what slurmd writes into the log of a batch job whose prolog failed
_PROLOG_LINE = re.compile(r"Error running slurm prolog: \d+")
_PROLOG_FAILED = Cause(
    kind="launch-failed",
    sentence="the prolog failed on the job's first node, so Slurm drained the node and cancelled the job",
    advice="submit the job again; with --requeue Slurm holds such a job instead, and `scontrol release` starts it",
    command="clusterrun submit …",
    source="Slurm 22.05, observed on a cluster",
)


def _failed_prolog(logs: Logs) -> Line | None:
    """Return the line of a prolog that failed, if it is the last of its log."""
    last = (next((line for line in reversed(lines) if line.text.strip()), None) for lines in logs)
    return next((line for line in last if line is not None and _PROLOG_LINE.fullmatch(line.text.strip())), None)


def _scheduler_cause(kind: str, by_file: Sequence[Sequence[LogFinding]], logs: Logs, facts: EndFacts) -> Cause:
    """Return what the scheduler did to the job, unless a rank had failed before."""
    findings = list(chain(*by_file))
    mark = next((f for f in findings if f.kind == kind), None)
    if mark is None and kind == "cancelled":  # after a requeue it was cancelled before it started again
        earlier = next((f for f in findings if f.kind in ("preemption", "requeued", "interrupted")), None)
        if earlier is not None:
            return replace(to_cause(earlier, facts), sentence=f"{earlier.sentence}; then the job was cancelled")
        if not findings and (line := _failed_prolog(logs)) is not None:
            return replace(_PROLOG_FAILED, evidence=(line,))
    for found in by_file if kind != "host-memory" else ():
        here = next((f for f in found if f.kind == kind), None)
        before = [f for f in found if here and f.index < here.index and not f.survived]
        before = [f for f in before if f.strength <= _max_strength(kind)]
        first = min(before, key=lambda f: (f.index, f.strength), default=None)
        if mark and first is not None and not (kind == "cancelled" and first.kind == "interrupted"):
            cause = full_cause(first, findings, logs, facts)
            evidence = (*cause.evidence, *evidence_lines(here))[:4]
            if kind == "node-failure" and cause.kind in _OF_NODE:
                advice = f"the failing node probably caused this error; {mark.advice}"
                cause = replace(cause, advice=advice, command=mark.command)
            return replace(cause, sentence=f"{cause.sentence}; then {mark.sentence}", evidence=evidence)
    cause = full_cause(mark, findings, logs, facts) if mark else to_cause(_unmarked(kind), facts)
    sentence = cause.sentence
    if kind == "node-failure" and facts.lost_nodes:
        return replace(
            cause,
            sentence=f"node{'s' * (len(facts.lost_nodes) > 1)} {', '.join(facts.lost_nodes)} failed",
            node=facts.lost_nodes[0],
            command=f"clusterrun submit … --exclude {','.join(facts.lost_nodes)} --requeue",
        )
    if kind == "cancelled" and facts.cancelled_by:
        sentence += f" by {facts.cancelled_by}"
        cause = replace(cause, advice="", command="clusterrun submit …")
    if kind == "cancelled" and mark is not None and (ended := _ended_before(mark, by_file)):
        sentence += f"; before that, {ended.sentence}"
        cause = replace(cause, evidence=(*cause.evidence, *evidence_lines(ended)))
    if kind in ("time-limit", "cancelled") and facts.behind:
        rank = min(facts.behind)
        sentence += f"; before that, the job hung waiting for {format_ranks([rank], facts)} ({facts.behind[rank]})"
        cause = replace(cause, rank=rank, node=facts.nodes.get(rank, ""))
    if kind == "time-limit":
        cause = _with_last_line(replace(cause, sentence=sentence), logs)
        sentence = cause.sentence
    turned = next((f for f in findings if f.row is NAN), None)
    if kind in ("time-limit", "cancelled", "preemption") and turned is not None:
        sentence += f"; before that, {turned.sentence}"
        cause = replace(cause, evidence=(*cause.evidence, *evidence_lines(turned)))
    return replace(cause, sentence=sentence)


def _with_last_line(cause: Cause, logs: Logs) -> Cause:
    """Return a time limit with the last line of most ranks; if they repeated it, more time alone may not help."""
    words, repeated = last_line_of_most(logs)
    if not words:
        return cause
    cause = replace(cause, sentence=f"{cause.sentence}; {words}")
    return replace(cause, advice=f"{_WAITED}{cause.advice}", command="clusterrun logs JOB -n 50") if repeated else cause


def _ended_before(mark: LogFinding, by_file: Sequence[Sequence[LogFinding]]) -> LogFinding | None:
    """Return the first task that srun reports as ended with a status before the job was cancelled."""
    here = next((found for found in by_file if mark in found), ())
    ended = (f for f in here if f.kind == "task-ended" and f.values.get("status") and f.line.text.startswith("srun: "))
    return next((f for f in ended if f.index < mark.index), None)


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
#: The advice and the command of kinds that have no row of their own for this case.
_ADVICE = {
    "deadline": ("submit the job with a later --deadline, or request less time", "scontrol show job JOB"),
    "launch-failed": ("look for Slurm's reason, and try other nodes", "scontrol show job JOB"),
}


def _max_strength(kind: str) -> Strength:
    """Return what counts as an earlier failure; ranks also time out because they wait for a lost node."""
    return Strength.CAUSE if kind in ("node-failure", "preemption") else Strength.HANG


def _recorded_failure(by_file: Sequence[Sequence[LogFinding]], logs: Logs, facts: EndFacts) -> LogFinding | None:
    """Return the recorded failure of the rank that failed first; None if it only noticed another's end."""
    failure = facts.failure
    if failure is None:
        return None
    row = RECORDED.get(failure.kind)
    known = recorded_finding(failure, row, logs) if row is not None else classify(failure.error)
    strength = known.strength if known is not None else Strength.CAUSE
    if strength is not Strength.CAUSE:
        return None
    # a line has two ranks if a command started a launcher: the label is the failed task, the prefix a rank of its own
    mine = [f for found in by_file for f in found if failure.rank in (f.rank, f.line.rank)]
    mine = [f for f in mine if f.strength is Strength.CAUSE]
    near = [f for f in mine if failure.error[:60] and failure.error[:60] in f.line.text]
    near = near or [f for f in mine if not f.survived]
    killed = _killed_before(by_file, near[0] if near else None, failure.rank)
    if killed is not None:
        return killed
    if near:
        found = near[-1]
        return replace(found, place=found.place or failure.place)
    if row is not None:
        return known
    line = Line(failure.file or "first_failure.json", None, failure.rank, failure.error)
    if known is not None:
        return replace(known, line=line, rank=failure.rank, place=failure.place)
    return replace(make_finding(EXCEPTION, 0, line, {"error": failure.error}, failure.rank), place=failure.place)


def _better_finding(
    best: LogFinding, by_file: Sequence[Sequence[LogFinding]], findings: Sequence[LogFinding], facts: EndFacts
) -> LogFinding:
    """Return a finding that explains more than ``best``: than a time-out, an exit status or an error about NaN."""
    if best.strength is Strength.HANG:
        return root_of_hang(by_file) or best
    better = missing_launcher(by_file) if best.kind == "file-missing" else later_exception(best, by_file)
    better = better or noticed_by(best, findings)
    if better is not None:
        return better
    if best.kind in BEHIND:
        is_behind = BEHIND[best.kind]
        return next((f for f in findings if is_behind(f) and not f.survived), best)
    turned = next((f for f in findings if f.row is NAN), None)
    if best.row is EXIT:
        hint = _earliest(by_file, facts)
        missing = [f for f in findings if f.kind == "command-missing"]
        if missing and facts.failure is not None and facts.failure.status in (126, 127):
            return missing[-1]
        return hint if hint is not None and _explains_exit(hint, best) else turned or best
    of_nan = best.row in (EXCEPTION, BARE) and _OF_NAN.search(best.sentence)
    return turned if turned is not None and of_nan else best


def _explains_exit(hint: LogFinding, best: LogFinding) -> bool:
    """Return whether a hint says more than an exit: a bare line, or an exception of a thread before a mere status."""
    in_thread = hint.row is EXCEPTION and hint.strength is Strength.HINT and hint.rank in (None, best.rank)
    return hint.row is BARE or (in_thread and "status" in best.values)


_OF_NAN = re.compile(r"(?i)\b(?:nan|inf|infinity|infinite)\b")


_SILENT = frozenset({"killed", "crashed", "gpu-fault", "node-failure"})  # a rank records no failure in these cases


def _killed_before(
    by_file: Sequence[Sequence[LogFinding]], near: LogFinding | None, rank: int | None
) -> LogFinding | None:
    """Return a kill, a crash or a faulty device of another rank before the recorded failure."""
    if near is None:
        return None
    for found in by_file:
        if near in found:
            first = [f for f in found if f.index < near.index and f.strength is Strength.CAUSE and not f.survived]
            return next((f for f in first if f.kind in _SILENT and f.rank != rank), None)
    return None


def _earliest(by_file: Sequence[Sequence[LogFinding]], facts: EndFacts) -> LogFinding | None:
    """Return the earliest of the strongest findings of each file, and of those the strongest; the first file wins."""
    chosen: list[LogFinding] = []
    failed = facts.state or facts.exit_status or any(f.strength <= Strength.HANG for f in chain(*by_file))
    for found in by_file if failed else [[f for f in found if not f.warned] for found in by_file]:
        serious = [f for f in found if f.strength <= Strength.HANG]
        lasting = [f for f in serious if not f.survived] or [f for f in serious if facts.state and not f.outlived]
        if lasting:
            chosen.append(min(lasting, key=lambda f: f.index))
        elif weak := [f for f in found if not f.survived]:
            chosen.append(min(weak, key=lambda f: (f.strength, _later(f), f.row is PEER_LOST, f.index)))
    return min(chosen, key=lambda f: (f.strength, f.row is EXCEPTION, _later(f)), default=None)


#: hints that usually follow from another hint
_LATER = {"nan-loss": 1, "crashed": 1, "interrupted": 2}


def _later(found: LogFinding) -> int:
    return _LATER.get(found.kind, 0) if found.strength >= Strength.HINT else 0


def _unmarked(kind: str) -> LogFinding:
    """Return the finding for what the scheduler did if no line of the logs shows it."""
    row = next((r for r in TABLE if r.kind == kind), EXCEPTION)
    if kind in _ADVICE:
        advice, command = _ADVICE[kind]
        row = replace(row, advice=advice, command=command, source="the job's state in Slurm")
    line = Line("", None, None, "")
    return replace(make_finding(replace(row, kind=kind), 0, line, {}), sentence=_UNMARKED[kind], command=row.command)
