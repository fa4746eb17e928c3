"""Choose a cause if no line names one: hints, a silent rank, consequences, the exit status."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from clusterrun.why.causes.context import find_failed_nccl_call, with_reason
from clusterrun.why.causes.describe import Logs, evidence_lines, format_ranks, silent_ranks, to_cause, with_task
from clusterrun.why.causes.model import BY_STEPD, Cause, EndFacts, Line, LogFinding, Strength
from clusterrun.why.causes.recorded import last_own_line
from clusterrun.why.causes.table_peers import PEER_LOST
from clusterrun.why.causes.table_python import BARE
from clusterrun.why.causes.tracebacks import split_rank

_ERROR = re.compile(
    rf"(?i)^(?!srun:|{BY_STEPD.pattern})"
    r".*\b(?:error|fatal|exception|abort(?:ed|ing))\b(?!s?[:=] ?0)(?!.*\b(?:info|debug|warn))"
)
_WORK = re.compile(r"(?i)\b(?:step|iter(?:ation)?|epoch|batch|loss)\b\W{0,3}\d|\d+%\|")
_GOOD_END = re.compile(r"(?i)\b(?:done|finished|completed?(?! stack)|success\w*|saved)\b")
_NO_ERROR = re.compile(  # reports of an end, and what an ending interpreter prints
    r"(?i)\bexit(?:s|ed|ing|code)?\b|error executing job|exception ignored|is not recoverable|has been aborted"
)
_NUMBER = re.compile(r"\d+")  # times, ranks and process numbers differ between lines with one message
_NEAR_END = 12  # lines that launchers may still print
_SHOWN = 200  # characters of a line in a sentence
_LAST = 5  # lines to show if none names a cause


def fallback_cause(best: LogFinding | None, findings: Sequence[LogFinding], logs: Logs, facts: EndFacts) -> Cause:
    """Return the best cause if no line names one: a hint, a silent rank, a consequence, or the exit status."""
    missing = [f for f in findings if f.kind == "command-missing"]
    if missing and facts.exit_status in (126, 127):
        return to_cause(missing[-1], facts)
    if (
        best is not None
        and best.strength is Strength.HINT
        and (facts.state or not (best.row is BARE or best.row.common) or _ends_its_log(best, logs))
        and (facts.state or not _continued(best, logs))
        and not ((best.row.common or best.warned) and _error_after(best, findings, logs))
    ):
        return to_cause(with_task(with_reason(best, findings, logs), findings, facts), facts)
    silent = silent_ranks(facts)
    if silent and (best is not None or facts.failure is not None):
        first = silent[0]
        failure = facts.failure
        recorded = (Line(failure.file or "first_failure.json", None, None, failure.error),) if failure else ()
        return Cause(
            kind="rank-lost",
            rank=first,
            node=facts.nodes.get(first, ""),
            sentence=f"{format_ranks(silent, facts)} ended without an error message: probably the kernel killed"
            " the process because host memory ran out, or the node failed",
            evidence=evidence_lines(best) or recorded,
            advice="ask your administrators to check the node's kernel log (dmesg); if host memory ran out, request"
            " more memory",
            command=f"clusterrun logs JOB --rank {first} -n 50",
        )
    if best is not None and best.strength is Strength.CONSEQUENCE:
        return _consequence(best, logs, facts)
    own = last_own_line(logs, facts)
    if own is not None:
        return to_cause(own, facts)
    if not facts.state and facts.exit_status is None:
        return Cause(kind="none", sentence="the logs do not name a cause and do not show whether the job failed")
    return _unknown(findings, logs, facts)


def _consequence(best: LogFinding, logs: Logs, facts: EndFacts) -> Cause:
    """Return the cause of a finding that follows from another failure, with NCCL's failed call if it shows one."""
    if best.row is not PEER_LOST:
        return to_cause(best, facts)
    lost = f"a rank lost the connection to {peer}" if (peer := best.values.get("peer")) else best.sentence
    if call := find_failed_nccl_call(best, logs):
        return replace(to_cause(best, facts), sentence=f"NCCL failed: {call}; then {lost}")
    return replace(to_cause(best, facts), sentence=f"{lost}; the log does not show why")


def _ends_its_log(found: LogFinding, logs: Logs) -> bool:
    """Return whether a log ends with the finding, and no other log with a message of success."""
    if found.row.common and found.kind not in ("command-missing", "setup"):
        return False
    for lines in logs:
        texts = [line.text[:1_000] for line in lines if line.text.strip()]
        if found.index < len(lines) and lines[found.index] is found.line:
            after = [line.text[:1_000] for line in lines[found.index + 1 :] if line.text.strip()]
            if len(after) > (1 if found.row.common else _NEAR_END):
                return False
            if any(_WORK.search(text) or _GOOD_END.search(text) for text in after):
                return False
        elif any(_GOOD_END.search(text) for text in texts[-2:]) or (found.row.common and texts):
            return False  # the program continued without the command
    return True


def _error_after(found: LogFinding, findings: Sequence[LogFinding], logs: Logs) -> bool:
    """Return whether the finding's log has a later error that no row explains: healthy jobs print the finding too."""
    held = next((lines for lines in logs if found.line in lines[found.index : found.index + 1]), ())
    known = {one.line for one in findings}
    return any(_ERROR.match(line.text[:1_000]) and line not in known for line in held[found.index + 1 :])


def _continued(found: LogFinding, logs: Logs) -> bool:
    """Return whether the finding is a warning of C++ code (``[W…``), which retries, and some log shows work."""
    work = (line for lines in logs for line in lines if _WORK.search(line.text[:1_000]))
    return split_rank(found.line)[1].startswith("[W") and len(list(islice(work, 3))) == 3


def _unknown(findings: Sequence[LogFinding], logs: Logs, facts: EndFacts) -> Cause:
    ended = next((f for f in findings if f.kind == "task-ended" and f.values.get("status")), None)
    rank = facts.failure.rank if facts.failure else ended.rank if ended else None
    # srun's status is the highest of all ranks', usually that of the ranks that it ended
    code = facts.failure.status if facts.failure is not None and facts.failure.status else facts.exit_status
    signal = f" (signal {code - 128})" if code is not None and 128 < code < 193 else ""
    status = f"exit status {code}{signal}" if code is not None else "why the job ended (exit status unknown)"
    lines: list[Line] = []
    for who in dict.fromkeys((rank, None)):  # the lines of that rank if they are labelled, else any
        for one in logs:
            lines = lines or [line for line in one if line.text.strip() and who in (None, line.rank)][-_LAST:]
    serious = {one.line for one in findings if one.strength <= Strength.HINT}  # survived, or not certain
    errors: dict[str, Line] = {}  # one line for each message
    for line in (line for one in logs for line in one if line in serious or _ERROR.match(line.text[:1_000])):
        errors.setdefault(_NUMBER.sub("", split_rank(line)[1].strip()), line)
    spoken = next(iter(errors.values()), None)
    if spoken is not None and spoken not in lines:
        lines = [spoken, *lines]
    whose = f"rank {rank}" if rank is not None and lines and lines[-1].rank == rank else "the log"
    shown = split_rank(spoken)[1].strip()[:_SHOWN] if spoken is not None else ""
    if spoken is not None and len(errors) == 1 and spoken not in serious and not _NO_ERROR.search(shown) and not signal:
        reporter = split_rank(spoken)[0] if split_rank(spoken)[0] is not None else rank
        return Cause(
            kind="reported-error",
            rank=reporter,
            node=facts.nodes.get(reporter, "") if reporter is not None else "",
            sentence=f"the only error message in the logs is: {shown}",
            evidence=tuple(lines),
            advice="read the log lines before this message to find the step that failed",
            command="clusterrun logs JOB -n 100",
        )
    first = f"; the first line that mentions an error is: {shown}" if shown else ""
    tail = f"{first}; the last lines of {whose} are below" if lines else "; the logs are empty or missing"
    return Cause(
        kind="unknown",
        rank=rank,
        node=facts.nodes.get(rank, "") if rank is not None else "",
        sentence=f"no line in the log explains {status}{tail}",
        evidence=tuple(lines),
        command="clusterrun logs JOB -n 100",
    )
