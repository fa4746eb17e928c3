"""What went wrong in a job that Slurm calls COMPLETED, if anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from clusterrun.run_folder.ends import Failure
from clusterrun.why.causes.describe import evidence_lines, to_cause
from clusterrun.why.causes.evidence import find_line, first
from clusterrun.why.causes.model import BY_STEPD, Cause, EndFacts, Line, LogFinding, Logs, Strength
from clusterrun.why.causes.nan_series import NAN
from clusterrun.why.causes.scan import scan
from clusterrun.why.causes.table_launch import ONE_LAUNCHER
from clusterrun.why.causes.table_recorded import SEPARATE

#: the first frame of an exception that nobody caught
_MAIN_MODULE = re.compile(r", in (?:<module>|_run_module_as_main)$")
_ENDED = ("task-ended", "crashed", "killed", "interrupted")
_LAST_LINES = 3  # that a batch script prints after its program
_WENT_ON = (
    "the script continued after its program failed, and exited with status 0: add `set -e` to the script, or end it"
    " with the program's status (exit $?)"
)
_TABLE_OF_RANKS = re.compile(r"(?:rank +node +device|\s*\d+ +\S+ +(?:cpu|cuda\S*|.*GPU.*))\s*")
_COMPLETED = "the job is COMPLETED, but"


def completed_cause(logs: Logs, facts: EndFacts) -> Cause:
    """Return the result of a COMPLETED job: ranks that never met, a failure that nobody noticed, or nothing."""
    if facts.separate is not None:
        return _separate(facts.separate, logs, facts)
    by_log = [scan(lines) for lines in logs]
    for lines, findings in zip(logs, by_log, strict=True):
        cause = _unnoticed_failure(findings, lines)
        if cause is not None:
            return cause
    return _failed_step(by_log, facts) or Cause(kind="none", sentence="nothing went wrong")


def _separate(separate: Failure, logs: Logs, facts: EndFacts) -> Cause:
    """Return that the ranks did not work together, with the program's last line if they trained nothing."""
    _, seen = find_line(logs, separate.values.get("line", ""))
    own_world = separate.values.get("own_world")
    last = _last_printed(logs) if separate.values.get("idle") == "True" else None
    sentence, advice = f"no rank used a process group: the job ran as {facts.world_size} separate programs", ""
    if own_world:
        sentence, advice = f"{sentence} (each rank started {own_world})", ONE_LAUNCHER
    if last is not None:
        sentence = "no rank used a process group or computed a gradient; the last line that its program printed:"
        sentence = f"{sentence} {last.text.strip()}"
    return Cause(
        kind=SEPARATE.kind, sentence=f"{_COMPLETED} {sentence}",
        evidence=tuple(line for line in (last, seen) if line is not None), advice=advice or SEPARATE.advice,
        command=SEPARATE.command, source=SEPARATE.source,
    )  # fmt: skip


def _last_printed(logs: Logs) -> Line | None:
    """Return the last line that the program printed, None if it printed none; a run's logs begin with that of err."""
    for lines in logs:
        for line in reversed(lines):
            if _is_of_program(line):
                return line
    return None


def _is_of_program(line: Line) -> bool:
    return not line.text.startswith("clusterrun:") and _TABLE_OF_RANKS.fullmatch(line.text) is None


def _unnoticed_failure(findings: Sequence[LogFinding], lines: Sequence[Line]) -> Cause | None:
    """Return a failure in one log: a loss that became NaN, a script or memory that was missing, an exception."""
    for finding in findings:
        if finding.row is NAN or _is_missing_script(finding):
            return to_cause(replace(finding, sentence=f"{_COMPLETED} {finding.sentence}"), EndFacts())
        if _is_killed_for_memory(finding):
            sentence = f"{_COMPLETED} at least one of its processes was killed: {finding.sentence}"
            return Cause(kind="none", sentence=sentence, evidence=evidence_lines(finding), advice=finding.advice)
    raised = _last_exception(findings, lines)
    if raised is None:
        return None
    sentence = f"{_COMPLETED} its program failed: {raised.sentence}"
    return replace(to_cause(replace(raised, sentence=sentence), EndFacts()), advice=_WENT_ON)


def _is_missing_script(finding: LogFinding) -> bool:
    return finding.kind == "file-missing" and "can't open file" in finding.line.text


def _is_killed_for_memory(finding: LogFinding) -> bool:
    """Return whether slurmstepd reports a process that was killed because memory ran out."""
    is_memory = finding.kind == "host-memory" and finding.strength is Strength.CAUSE
    return is_memory and BY_STEPD.match(finding.line.text) is not None


def _last_exception(findings: Sequence[LogFinding], lines: Sequence[Line]) -> LogFinding | None:
    """Return the exception with which a log ends, but for the last lines of a script that ignores a status."""
    last = first(reversed(findings), lambda f: f.is_fatal and bool(f.place))
    if last is None or not _is_uncaught(lines, last.index):
        return None
    after = [line for line in lines[last.index + 1 :] if not line.is_slurms]
    return last if len(after) <= _LAST_LINES else None


def _is_uncaught(lines: Sequence[Line], index: int) -> bool:
    """Return whether the traceback that ends at a line begins in the main module: nobody caught the exception."""
    begins = [at for at in range(index + 1) if "Traceback (most recent call" in lines[at].text]
    begin = begins[-1] if begins else index
    return any(_MAIN_MODULE.search(line.text) for line in lines[begin + 1 : begin + 3])


def _failed_step(by_log: Sequence[Sequence[LogFinding]], facts: EndFacts) -> Cause | None:
    """Return that a step of another tool's job failed, by srun's words; a run's ranks may have started again."""
    if facts.world_size:  # of a run
        return None
    for finding in chain(*by_log):
        if finding.kind in _ENDED and finding.line.is_slurms:
            sentence = f"{_COMPLETED} one of its steps failed: {finding.sentence}"
            cause = to_cause(replace(finding, sentence=sentence), EndFacts())
            return cause if finding.kind == "interrupted" else replace(cause, advice=_WENT_ON)
    return None
