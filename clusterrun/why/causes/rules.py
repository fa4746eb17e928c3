"""The rules that name the first cause of a job's end, in their order: the first that applies gives the answer.

What the job recorded and what Slurm says come first; then the failure that came first; then weaker signs. Nothing is
guessed: if no rule names a cause, the last one says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from clusterrun.base.job import LAUNCH_FAILURE, LAUNCH_REASON, STOPPED_STATUS
from clusterrun.base.units import clause
from clusterrun.run_folder.ends import Failure
from clusterrun.why.causes.completed import completed_cause
from clusterrun.why.causes.context import find_failed_call
from clusterrun.why.causes.describe import (
    BY_DUE,
    BY_STATE,
    cause_with_context,
    evidence_lines,
    format_ranks,
    full_cause,
    to_cause,
)
from clusterrun.why.causes.evidence import HINT, Evidence, line_of, recorded_finding
from clusterrun.why.causes.first_failure import find_first_failure
from clusterrun.why.causes.hang import hang_cause, silent_ranks
from clusterrun.why.causes.match import make_finding
from clusterrun.why.causes.model import BY_STEPD, Cause, EndFacts, Line, LogFinding, Logs, Strength
from clusterrun.why.causes.scan import PROGRESS
from clusterrun.why.causes.scheduled import scheduler_cause
from clusterrun.why.causes.table_peers import PEER_LOST
from clusterrun.why.causes.table_python import BARE
from clusterrun.why.causes.table_recorded import DUPLICATE, OWN, STOPPED
from clusterrun.why.causes.tracebacks import split_rank

_DUPLICATE = 75  # the status of a script whose run another job already executes
_OVER = frozenset((*BY_STATE, "FAILED", "UNKNOWN", "REVOKED", "RECONFIG_FAIL"))
_ERROR = re.compile(
    rf"(?i)^(?!srun:|{BY_STEPD.pattern})"
    r".*\b(?:error|fatal|exception|abort(?:ed|ing))\b(?!s?[:=] ?0)(?!.*\b(?:info|debug|warn))"
)
_GOOD_END = re.compile(r"(?i)\b(?:done|finished|completed?(?! stack)|success\w*|saved)\b")
_WORK_OR_GOOD_END = re.compile(rf"{PROGRESS.pattern}|{_GOOD_END.pattern.removeprefix('(?i)')}")
_NO_ERROR = re.compile(  # reports of an end, and what an ending interpreter prints
    r"(?i)\bexit(?:s|ed|ing|code)?\b|error executing job|exception ignored|is not recoverable|has been aborted"
)
_NUMBER = re.compile(r"\d+")  # times, ranks and process numbers differ between lines with one message
_OWN_LINE = re.compile(r"clusterrun: (?:rank (?P<rank>\d{1,7}): )?(?P<what>(?!hint: ).+)")
_LAST_OWN = 3  # lines of a log of which one is clusterrun's
_NEAR_END = 12  # lines that launchers may still print
_READ = 1_000  # characters of a line that are searched
_SHOWN = 200  # characters of a line in a sentence
_LAST = 5  # lines to show if none names a cause


def first_cause(logs: Logs, facts: EndFacts) -> Cause:
    """Return the first cause of a job's end; ``logs`` are the lines of each file, most trusted first."""
    logs = [[line for line in lines if line.text.strip()] for lines in logs]  # a blank line says nothing
    if facts.state == "COMPLETED":
        return completed_cause(logs, facts)
    evidence = Evidence.gather(logs, facts)
    evidence = replace(evidence, first_failure=find_first_failure(evidence))
    for rule in RULES:
        cause = rule(evidence)
        if cause is not None:
            return cause
    return _unexplained(evidence)


# -- what was recorded, and what Slurm says ----------------------------------------------------------------------------


def not_ended(evidence: Evidence) -> Cause | None:
    """Applies to a job that Slurm does not call ended, and that has no exit status."""
    state = evidence.facts.state
    if not state or state in _OVER or evidence.facts.exit_status:
        return None
    return Cause(kind="none", sentence="the job has not ended")


def ended_by_watchdog(evidence: Evidence) -> Cause | None:
    """Applies if the watchdog ended a launch that hung, unless the scheduler ended the job."""
    hang = evidence.facts.hang
    return hang_cause(hang) if hang is not None and evidence.facts.state in ("FAILED", "") else None


def saved_and_stopped(evidence: Evidence) -> Cause | None:
    """Applies to the exit status of a run that saved a checkpoint and stopped before its last step."""
    facts = evidence.facts
    if facts.exit_status != STOPPED_STATUS or facts.state not in ("", "FAILED"):
        return None
    if facts.stop is not None:
        return to_cause(recorded_finding(facts.stop, STOPPED, evidence.logs), facts)
    cause = to_cause(recorded_finding(Failure(), STOPPED, ()), facts)
    return replace(cause, sentence="the run saved a checkpoint and stopped")


def duplicate(evidence: Evidence) -> Cause | None:
    """Applies to the exit status of a second copy of a script, if another job has claimed the run."""
    facts = evidence.facts
    if facts.exit_status != _DUPLICATE or not facts.other_owner:
        return None
    return to_cause(recorded_finding(Failure(values={"other": facts.other_owner}), DUPLICATE, ()), facts)


def log_unopened(evidence: Evidence) -> Cause | None:
    """Applies if Slurm could not open the job's log files: the logs are empty, and its status or reason says so."""
    facts = evidence.facts
    # without accounting Slurm soon forgets the exit code; the reason that was seen in the queue remains
    unlaunched = facts.reason == LAUNCH_REASON and facts.exit_status is None and not facts.ends
    if evidence.findings or not (unlaunched or facts.exit_status == LAUNCH_FAILURE):
        return None
    node = facts.first_node
    where = node or "its node"
    unstarted = f"Slurm could not start the job on {where} (JobLaunchFailure); the log folder is probably missing"
    unopened = (
        f"Slurm could not open the job's log files{clause(node, ' on {}')}, so the job never ran (exit code 0:53)"
    )
    return Cause(
        kind="log-unopened",
        sentence=unstarted if unlaunched else unopened,
        advice="check that the log folder exists, is writable on the compute nodes and is not on a full disk",
        command="ls -ld logs; df -h .; quota -s",
        node=node,
        source="Slurm 22.05, observed on a cluster",
    )


def ended_by_scheduler(evidence: Evidence) -> Cause | None:
    """Applies if the job's state, or its own end record, says that Slurm ended it."""
    kind = BY_STATE.get(evidence.facts.state) or BY_DUE.get(evidence.facts.due)
    return scheduler_cause(kind, evidence) if kind else None


# -- the first failure, and weaker signs -------------------------------------------------------------------------------


def first_failure(evidence: Evidence) -> Cause | None:
    """Applies if a record or a line names a failure, or ranks that waited too long."""
    finding = evidence.first_failure
    if finding is None or finding.strength > Strength.HANG:
        return None
    return full_cause(finding, evidence)


def command_not_run(evidence: Evidence) -> Cause | None:
    """Applies to a shell's exit status for a command that it did not find or could not run, if a line names one."""
    missing = evidence.missing_command(evidence.facts.exit_status)
    return None if missing is None else to_cause(missing, evidence.facts)


def lasting_hint(evidence: Evidence) -> Cause | None:
    """Applies to a hint, unless the program worked on after it or a later line says more."""
    finding = evidence.first_failure
    if finding is None or finding.strength is not Strength.HINT:
        return None
    if not evidence.facts.state and _may_be_harmless(finding, evidence.logs):
        return None
    if (finding.row.common or finding.warned) and _error_after(finding, evidence):
        return None
    return cause_with_context(finding, evidence)


def silent_rank(evidence: Evidence) -> Cause | None:
    """Applies if at most half of the ranks left no end record, and something shows that the job failed."""
    facts, failure, finding = evidence.facts, evidence.facts.failure, evidence.first_failure
    silent = silent_ranks(facts)
    recorded = (line_of(failure),) if failure is not None else ()
    shown = evidence_lines(finding) or recorded
    if not silent or not shown:
        return None
    return Cause(
        kind="rank-lost",
        rank=silent[0],
        node=facts.node_of(silent[0]),
        sentence=f"{format_ranks(silent, facts)} ended without an error message: probably the kernel killed"
        " the process because host memory ran out, or the node failed",
        evidence=shown,
        advice="ask your administrators to check the node's kernel log (dmesg); if host memory ran out, request"
        " more memory",
        command=f"clusterrun logs JOB --rank {silent[0]} -n 50",
    )


def consequence(evidence: Evidence) -> Cause | None:
    """Applies to a line that follows from another failure, such as a lost connection."""
    finding = evidence.first_failure
    if finding is None or finding.strength is not Strength.CONSEQUENCE:
        return None
    cause = to_cause(finding, evidence.facts)
    if finding.row is not PEER_LOST:
        return cause
    peer = finding.values.get("peer")
    lost = f"a rank lost the connection to {peer}" if peer else finding.sentence
    call = find_failed_call(evidence.lines_of(finding)[: finding.index])
    sentence = f"NCCL failed: {call}; then {lost}" if call else f"{lost}; the log does not show why"
    return replace(cause, sentence=sentence)


def own_last_line(evidence: Evidence) -> Cause | None:
    """Applies to a job without a record of its end, if a line of clusterrun is among the last of its log."""
    facts = evidence.facts
    if facts.failure is not None or facts.launch is not None:
        return None
    for lines in evidence.logs:
        last = [line for line in lines if not line.is_slurms][-_LAST_OWN:]
        for line in reversed(last):
            own = _OWN_LINE.match(line.text)
            if own is not None:
                rank = int(own["rank"]) if own["rank"] else line.rank
                finding = make_finding(OWN, 0, line, {"error": own["what"]}, rank)
                return to_cause(replace(finding, advice=_find_hint(last)), facts)
    return None


def _find_hint(lines: Sequence[Line]) -> str:
    for line in lines:
        if line.text.startswith(HINT):
            return line.text.removeprefix(HINT)
    return ""


def nothing_known(evidence: Evidence) -> Cause | None:
    """Applies if neither a state nor an exit status shows that the job failed."""
    if evidence.facts.state or evidence.facts.exit_status is not None:
        return None
    return Cause(kind="none", sentence="the logs do not name a cause and do not show whether the job failed")


RULES: tuple[Callable[[Evidence], Cause | None], ...] = (
    not_ended,
    ended_by_watchdog,
    saved_and_stopped,
    duplicate,
    log_unopened,
    ended_by_scheduler,
    first_failure,
    command_not_run,
    lasting_hint,
    silent_rank,
    consequence,
    own_last_line,
    nothing_known,
)

# -- nothing explains the end ------------------------------------------------------------------------------------------


def _unexplained(evidence: Evidence) -> Cause:
    """Return the only error message as the cause; with several or none the cause is unknown."""
    errors = _error_lines(evidence)
    return _only_error(evidence, errors) or _unknown(evidence, errors)


def _only_error(evidence: Evidence, errors: Sequence[Line]) -> Cause | None:
    """Return the single message that mentions an error as the cause, unless a signal ended the job."""
    if len(errors) != 1 or _signal(evidence.facts):
        return None
    rank, text = split_rank(errors[0])
    shown = text.strip()[:_SHOWN]
    if errors[0] in _serious_lines(evidence) or _NO_ERROR.search(shown):
        return None
    rank = rank if rank is not None else _failed_rank(evidence)
    return Cause(
        kind="reported-error",
        rank=rank,
        node=evidence.facts.node_of(rank),
        sentence=f"the only error message in the logs is: {shown}",
        evidence=_shown_lines(evidence, errors),
        advice="read the log lines before this message to find the step that failed",
        command="clusterrun logs JOB -n 100",
    )


def _unknown(evidence: Evidence, errors: Sequence[Line]) -> Cause:
    """Return that no line explains the end, with the lines to look at."""
    rank = _failed_rank(evidence)
    lines = _shown_lines(evidence, errors)
    sentence = f"no line in the log explains {_status_in_words(evidence.facts)}"
    if errors:
        shown = split_rank(errors[0])[1].strip()[:_SHOWN]
        sentence += f"; the first line that mentions an error is: {shown}"
    if not lines:
        sentence += "; the logs are empty or missing"
    else:
        whose = f"rank {rank}" if rank is not None and lines[-1].rank == rank else "the log"
        sentence += f"; the last lines of {whose} are below"
    return Cause(
        kind="unknown",
        rank=rank,
        node=evidence.facts.node_of(rank),
        sentence=sentence,
        evidence=lines,
        command="clusterrun logs JOB -n 100",
    )


# -- evidence of weaker signs ------------------------------------------------------------------------------------------


def _may_be_harmless(finding: LogFinding, logs: Logs) -> bool:
    """Return whether healthy jobs print a line too and go on, if nothing is known of the job's end."""
    if finding.row is not BARE and not finding.row.common:
        return False
    if finding.row.common and finding.kind not in ("command-missing", "setup"):
        return True
    return any(_goes_on(finding, lines) for lines in logs)


def _goes_on(finding: LogFinding, lines: Sequence[Line]) -> bool:
    """Return whether a log shows that the program continued: work, a good end, or more than a launcher's last lines."""
    if not finding.is_in(lines):  # after a command that may be missing, anything at all
        return bool(finding.row.common and lines) or _matches(_GOOD_END, lines[-2:])
    after = lines[finding.index + 1 :]
    most = 1 if finding.row.common else _NEAR_END
    return len(after) > most or _matches(_WORK_OR_GOOD_END, after)


def _matches(pattern: re.Pattern[str], lines: Sequence[Line]) -> bool:
    return any(pattern.search(line.text[:_READ]) for line in lines)


def _error_after(finding: LogFinding, evidence: Evidence) -> bool:
    """Return whether the finding's log has a later error that no row explains: healthy jobs print the finding too."""
    after = evidence.lines_of(finding)[finding.index + 1 :]
    return any(_ERROR.match(line.text[:_READ]) and line not in evidence.explained for line in after)


def _serious_lines(evidence: Evidence) -> set[Line]:
    """Return the lines of findings that a rank survived, or that are not certain."""
    return {f.line for f in evidence.findings if f.strength <= Strength.HINT}


def _error_lines(evidence: Evidence) -> list[Line]:
    """Return the first line of each message that mentions an error."""
    serious = _serious_lines(evidence)
    errors: dict[str, Line] = {}
    for line in chain(*evidence.logs):
        if line in serious or _ERROR.match(line.text[:_READ]):
            errors.setdefault(_NUMBER.sub("", split_rank(line)[1].strip()), line)
    return list(errors.values())


def _shown_lines(evidence: Evidence, errors: Sequence[Line]) -> tuple[Line, ...]:
    """Return the first error, and the last lines of the rank that failed, if they are labelled, else of a log."""
    last = next(_last_lines(evidence), [])
    return tuple(last) if not errors or errors[0] in last else (errors[0], *last)


def _last_lines(evidence: Evidence) -> Iterator[list[Line]]:
    for rank in (_failed_rank(evidence), None):
        for lines in evidence.logs:
            last = [line for line in lines if rank in (None, line.rank)][-_LAST:]
            if last:
                yield last


def _failed_rank(evidence: Evidence) -> int | None:
    """Return the rank that failed first by its record, else the task that srun reports first."""
    if evidence.facts.failure is not None:
        return evidence.facts.failure.rank
    ended = evidence.first(lambda f: f.is_ended_task)
    return ended.rank if ended is not None else None


def _signal(facts: EndFacts) -> str:
    status = facts.failed_status or 0
    return f" (signal {status - 128})" if 128 < status < 193 else ""


def _status_in_words(facts: EndFacts) -> str:
    status = facts.failed_status
    return "why the job ended (exit status unknown)" if status is None else f"exit status {status}{_signal(facts)}"
