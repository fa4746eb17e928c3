"""Match the lines of a log against the tables: one finding per line, or group of lines."""

from __future__ import annotations

import posixpath
import re
import shlex
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from clusterrun.why.causes.aborts import apply_abort_messages
from clusterrun.why.causes.memory_units import format_excess
from clusterrun.why.causes.model import READ, CauseRow, Line, LogFinding, Strength
from clusterrun.why.causes.nan_series import NAN, find_nan_start
from clusterrun.why.causes.table_files import FILES, UNRESOLVED
from clusterrun.why.causes.table_gpu import GPU
from clusterrun.why.causes.table_launch import LAUNCH
from clusterrun.why.causes.table_peers import PEERS
from clusterrun.why.causes.table_python import BARE, EXCEPTION, PYTHON
from clusterrun.why.causes.table_slurm import SLURM
from clusterrun.why.causes.tracebacks import (
    Raised,
    Summary,
    find_crash_place,
    find_summaries,
    find_tracebacks,
    split_rank,
)

#: All rows; of two that match one line the earlier counts, where it explains as much.
TABLE: tuple[CauseRow, ...] = (*SLURM, *GPU, *PEERS, *PYTHON, *FILES, *LAUNCH)

_MOST_OF_ONE = 2_000  # lines that one needle may name in one file: a word that stands in every line tells nothing new
_MOST_RANKS = 4_096  # of one line of srun's
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
_OTHER = ("_too", "_old")
_STEPD = re.compile(r"slurmstepd-([\w.-]+): ")
#: How a line of slurmstepd's begins: by its name, in 26.05 by the time, which other programs' lines may begin with too.
BY_STEPD = re.compile(r"slurmstepd|\[\d{4}-[\dT:.-]+\] error: (?:\*\*\* |Detected \d+ oom|StepId=)")
_SKIPPED = re.compile(r"(?i)\bskip(?:s|ped|ping)? (?:this |the |a )?batch\b")
#: exceptions that only report another process's end
_REPORTS = frozenset(("ChildFailedError", "SystemExit", "CalledProcessError", "ProcessExitedException"))
_REPR = re.compile(r"^(\w+(?:Error|Exception))\((['\"])(.*)\2,?\)$")
_WORD, _PART = re.compile(r"\{(\w+)\}"), re.compile(r"\[([^\]]*)\]")
PROGRESS = re.compile(r"(?i)\b(?:step|iter(?:ation)?|epoch|batch|loss|it/s|s/it|tokens?/s)\b\W{0,3}\d|\d+%\|")


def scan(lines: Sequence[Line]) -> list[LogFinding]:
    """Return the findings in the lines of one file, in order."""
    found: dict[int, LogFinding] = {}
    for row_, index in _candidate_lines(lines):
        finding = match_row(row_, lines[index], index)
        known = found.get(index)
        if finding is not None and (known is None or (finding.strength < known.strength and not row_.general)):
            found[index] = finding
    raised = find_tracebacks(lines)
    for one in raised:
        _add_traceback(found, one, lines)
    for index in [i for i in found if "Fatal Python error" in found[i].line.text]:
        found[index] = replace(found[index], place=find_crash_place(lines, index))
    for summary in find_summaries(lines):
        for index in [i for i, one in found.items() if "local_rank: " in one.line.text]:
            del found[index]  # the same said by local ranks only
        found[summary.index] = _summary_finding(lines[summary.index], summary)
    apply_abort_messages(found, lines)
    findings = _mark_survived([found[index] for index in sorted(found)], lines)
    turned = find_nan_start(lines)
    if turned is not None:  # lines of work come after it, and are what shows it
        index, sentence = turned
        findings.append(
            LogFinding(row=NAN, index=index, line=lines[index], rank=split_rank(lines[index])[0], sentence=sentence,
                    advice=NAN.advice, command=NAN.command, strength=NAN.strength)
        )  # fmt: skip
    return findings


def match_row(row_: CauseRow, line: Line, index: int = 0) -> LogFinding | None:
    """Return a row's finding in one line, None if it does not match."""
    rank, text = split_rank(line)
    text = _REPR.sub(r"\1: \3", text[:READ])  # hydra prints an exception as its repr
    match = row_.pattern.search(text)
    if match is None or " NCCL INFO " in text:  # what NCCL tries again, or does without
        return None
    words = {name: value.strip() for name, value in match.groupdict().items() if value}
    for name in [name for name in words if name.endswith(_OTHER)]:  # the same word at another place of the pattern
        words.setdefault(name[: -len("_too")], words[name])
    if words.get("ms", "").isdigit():
        words["limit"] = f"{int(words['ms']) / 1000:g} s"
    if "used" in words and len(words["used"] + words.get("limit", "")) < 40:
        words["compared"] = format_excess(int(words["used"]), int(words["limit"]))
    if "within" in words:  # the worker says where it looked
        words["path"] = words["what"] = posixpath.join(words["within"], words.get("what", ""))
    if "path" in words:
        words["path"] = shlex.quote(words["path"])
    if "/" in words.get("what", ""):
        words["folder"] = shlex.quote(words["what"].strip("'\"").rpartition("/")[0] or "/")
    ranks = parse_ranges(words.get("ranks", ""))
    named_rank = words.get("rank") or (
        words.get("reporter") if rank is None else None
    )  # a reporter counts within its group
    if BY_STEPD.match(text):
        rank = None  # the label is the task's whose stream it came through; what it says is of the whole step
        speaker = _STEPD.match(text)
        if speaker is not None and row_.kind == "host-memory":
            words.setdefault("node", speaker[1])
    rank = ranks[0] if ranks else int(named_rank) if named_rank and named_rank.isdigit() else rank
    words["0"] = match[0][:200]
    known = words | ({} if rank is None else {"rank": str(rank)})
    return LogFinding(
        row=row_,
        index=index,
        line=line,
        rank=rank,
        ranks=ranks,
        node=words.get("node", ""),
        sentence=fill_template(row_.sentence, known),
        advice=fill_template(row_.advice, known),
        command=fill_template(row_.command, known),
        strength=row_.strength,
        values=tuple(words.items()),
    )


def classify(text: str) -> LogFinding | None:
    """Return the finding in a single text, such as a rank's recorded error; None if no row matches."""
    line = Line("", None, None, text)
    low = text.lower()
    found = [f for row_ in TABLE if any(n in low for n in row_.needles) and (f := match_row(row_, line)) is not None]
    return min(found, key=lambda f: f.strength, default=None)


def parse_ranges(text: str) -> tuple[int, ...]:
    """Return the numbers of ``1-3,5``, some thousands at most, as the text is not trusted."""
    numbers: list[int] = []
    for part in text.replace(" ", "").split(","):
        low, _, high = part.partition("-")
        if not low.isdigit() or (high and not high.isdigit()) or len(low) > 7 or len(high) > 7:
            continue
        room = _MOST_RANKS - len(numbers)
        numbers.extend(range(int(low), min(int(high or low) + 1, int(low) + room)))
    return tuple(numbers)


def fill_template(template: str, words: Mapping[str, str]) -> str:
    """Return a row's text with its words filled in; a part in brackets is dropped if a word is missing."""

    def part(match: re.Match[str]) -> str:
        return fill_template(match[1], words) if all(name in words for name in _WORD.findall(match[1])) else ""

    return _WORD.sub(lambda m: words.get(m[1], "?"), _PART.sub(part, template))


def _candidate_lines(lines: Sequence[Line]) -> Iterable[tuple[CauseRow, int]]:
    """(row, index of a line that holds one of its needles), each once."""
    joined = "\n".join(line.text for line in lines)
    low = joined.encode("ascii", "replace").lower().decode()  # as long as the original, which lower() alone is not
    starts = list(accumulate((len(line.text) + 1 for line in lines), initial=0))
    where: dict[str, list[int]] = {}
    for row_ in (*TABLE, BARE):
        for needle in row_.needles:
            if needle not in where:
                where[needle] = _lines_with(low, needle, starts)
            for index in where[needle]:
                yield row_, index


def _lines_with(low: str, needle: str, starts: list[int]) -> list[int]:
    found: list[int] = []
    at = low.find(needle)
    while at >= 0 and len(found) < _MOST_OF_ONE:
        index = bisect_right(starts, at) - 1
        found.append(index)
        at = low.find(needle, starts[index + 1])
    return found


def _add_traceback(found: dict[int, LogFinding], raised: Raised, lines: Sequence[Line]) -> None:
    """Let a traceback speak at its last line: in the words of a row that knows it, else in its own."""
    inside = [
        found[i]
        for i in range(raised.first, raised.end + 1)
        if i in found and (found[i].rank == raised.rank or split_rank(lines[i])[0] == raised.rank)
    ]
    known = min((f for f in inside if f.row is not BARE), key=lambda f: (f.strength, f.index), default=None)
    for one in inside:
        del found[one.index]
    line = lines[raised.index]
    text = f"{raised.text[:300]}; from {raised.cause[:120]}" if raised.cause else raised.text[:300]
    if known is not None and known.kind == "name-resolution" and raised.online:
        sentence = fill_template(UNRESOLVED.sentence, {"error": raised.text[:200]})
        known = replace(known, row=UNRESOLVED, sentence=sentence,
                        advice=UNRESOLVED.advice, command=UNRESOLVED.command)  # fmt: skip
    if known is not None and known.kind == "peer-lost" and raised.online:
        known = None  # a server that is not one of the ranks
    if known is None:
        name = raised.name.rpartition(".")[2]
        echo = raised.harmless or name in _REPORTS
        finding = LogFinding(
            row=EXCEPTION,
            index=raised.index,
            line=line,
            rank=raised.rank,
            sentence=text,
            advice=EXCEPTION.advice,
            command=fill_template(EXCEPTION.command, {} if raised.rank is None else {"rank": str(raised.rank)}),
            place=raised.place,
            strength=Strength.ECHO if echo else Strength.HINT if raised.threaded else Strength.CAUSE,
        )
    else:
        strength = Strength.ECHO if raised.harmless else known.strength
        finding = replace(known, index=raised.index, line=known.line, place=raised.place, strength=strength)
        if finding.rank is None:
            finding = replace(finding, rank=raised.rank)
    found[raised.index] = finding


def _summary_finding(line: Line, summary: Summary) -> LogFinding:
    """torchrun's word on who failed first: a cause where it was a signal, else only who it was."""
    rank, code = summary.rank, summary.code or 0
    kind = "task-ended" if code >= 0 or code == -15 else "killed" if code == -9 else "crashed"
    model = next(r for r in SLURM if r.kind == kind)
    who = f"rank {rank} on {summary.host or '?'}" if rank is not None else "a rank"
    how = _SIGNALS.get(-code, f"signal {-code}") if code < 0 else f"status {code}"
    return LogFinding(
        row=model,
        index=summary.index,
        line=line,
        rank=rank,
        ranks=() if rank is None else (rank,),
        node=summary.host,
        sentence=f"{who} was ended by {how}" if code < 0 else f"{who} ended with {how}",
        advice=model.advice,
        command=fill_template(model.command, {} if rank is None else {"rank": str(rank)}),
        strength=model.strength,
        values=(("status", str(code)),) if code > 0 else (),
    )


def _mark_survived(findings: list[LogFinding], lines: Sequence[Line]) -> list[LogFinding]:
    """Mark what a rank survived: three lines of its work came after it, or a batch too large that it left out."""
    if not findings:
        return findings
    after: dict[int | None, list[int]] = {}  # rank -> the indexes of its last three lines of work, newest first
    everybody: list[int] = []
    first = min(f.index for f in findings)
    for index in range(len(lines) - 1, first, -1):
        if len(everybody) >= 3 and len(after) > 64:
            break
        line = lines[index]
        if PROGRESS.search(line.text) is None:
            continue
        everybody.append(index)
        mine = after.setdefault(split_rank(line)[0], [])
        if len(mine) < 3:
            mine.append(index)
    marked = []
    for finding in findings:
        work = after.get(finding.rank, []) if finding.rank is not None else everybody[:3]
        if finding.line.text.startswith("srun:") or BY_STEPD.match(finding.line.text):
            work = []
        survived = len(work) == 3 and work[2] > finding.index
        if finding.kind == "cuda-memory":
            near = lines[finding.index : finding.index + 4]
            survived = survived or any(_SKIPPED.search(line.text[:READ]) for line in near)
        marked.append(replace(finding, survived=survived))
    return marked
