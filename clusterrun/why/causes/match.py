"""Match the lines of a log against the tables: one finding per line, or group of lines."""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from clusterrun.base.job import format_tasks
from clusterrun.why.causes.aborts import apply_abort_messages
from clusterrun.why.causes.attempts import merge_quoted, unreachable_host
from clusterrun.why.causes.memory_units import format_excess
from clusterrun.why.causes.model import BY_STEPD, ENOUGH, READ, CauseRow, Line, LogFinding, Strength
from clusterrun.why.causes.nan_series import NAN, find_nan_start
from clusterrun.why.causes.summaries import Summary, find_summaries
from clusterrun.why.causes.table_files import FILES, UNRESOLVED
from clusterrun.why.causes.table_gpu import BUILD, GPU
from clusterrun.why.causes.table_launch import LAUNCH, PANIC
from clusterrun.why.causes.table_peers import PEERS
from clusterrun.why.causes.table_python import BARE, EXCEPTION, PYTHON, SHM_FULL
from clusterrun.why.causes.table_slurm import SLURM
from clusterrun.why.causes.tracebacks import (
    Raised,
    find_crash_place,
    find_tracebacks,
    split_rank,
)

#: All rows; of two of equal strength that match one line the earlier counts.
TABLE: tuple[CauseRow, ...] = (*SLURM, *GPU, *PEERS, *PYTHON, *FILES, *LAUNCH)

_MOST_OF_ONE = 2_000  # lines of one file that a needle may name: more of the same word adds nothing
_AFTER = 60  # lines below a finding that may say more
_MOST_RANKS = 4_096  # in one line of srun
_ANY, _MOST_COUNTED = "any", 65  # ranks whose lines of work are counted
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
_KINDS = {-9: "killed", -15: "task-ended"}  # by torchrun's exit code
_OTHER = ("_too", "_old")
#: What Slurm's commands report of themselves. The rows about connections of ranks do not explain it.
_BY_COMMAND = re.compile(r"(?:srun|sbatch|salloc): (?:error|fatal): ")
_OF_RANKS = frozenset(map(id, PEERS))
_STEPD = re.compile(r"slurmstepd-([\w.-]+): ")
_SKIPPED = re.compile(r"(?i)\bskip(?:s|ped|ping)? (?:this |the |a )?batch\b")
#: exceptions that only report another process's end
_REPORTS = frozenset(
    ("ChildFailedError", "SystemExit", "CalledProcessError", "ProcessExitedException", "TuneError", "RayActorError")
)
#: kinds whose sentence says what the program was doing
_AMID = frozenset(
    (
        "disk-full",
        "quota",
        "file-system",
        "read-only",
        "permission",
        "nccl-error",
        "no-gpu",
        "cuda-memory",
        "host-memory",
        "interrupted",
    )
)
_REPR = re.compile(r"^(\w+(?:Error|Exception))\((?:\d+, )?(['\"])(.*)\2,?\)$")
#: torch's announcement of a worker's traceback, whose own message follows
_CAUGHT = re.compile(r"Caught \w+ in (?:DataLoader worker process|pin memory thread|replica) ")
#: torch.multiprocessing's report of a process that ended, before ProcessExitedException
_SPAWNED = re.compile(r"Exception: process \d+ terminated with exit code \d+$")
_WORD = re.compile(r"\{(\w+)\}")
_TEMPLATE = re.compile(r"\[(?P<part>[^\]]*)\]|\{(?P<word>\w+)\}")
PROGRESS = re.compile(r"(?i)\b(?:step|iter(?:ation)?|epoch|batch|loss|it/s|s/it|tokens?/s)\b\W{0,3}\d|\d+%\|")


def scan(lines: Sequence[Line]) -> list[LogFinding]:
    """Return the findings in the lines of one file, in order."""
    found = _match_rows(lines)
    for raised in find_tracebacks(lines):
        _add_traceback(found, raised, lines)
    merge_quoted(found, lines)
    for index, finding in found.items():
        found[index] = _completed(finding, lines)
    _add_summaries(found, lines)
    apply_abort_messages(found, lines)
    findings = _count_work([found[index] for index in sorted(found)], lines)
    turned = find_nan_start(lines)
    if turned is not None:  # never marked as survived: the later lines of work are what shows it
        index, sentence = turned
        findings.append(make_finding(NAN, index, lines[index], {"error": sentence}, split_rank(lines[index])[0]))
    return findings


def _match_rows(lines: Sequence[Line]) -> dict[int, LogFinding]:
    """Return the strongest finding of each line, of two of equal strength that of the earlier row."""
    found: dict[int, LogFinding] = {}
    for row_, index in _candidate_lines(lines):
        finding = match_row(row_, lines[index], index)
        if finding is not None and (index not in found or _is_better(finding, found[index])):
            found[index] = finding
    return found


def _is_better(finding: LogFinding, other: LogFinding) -> bool:
    return finding.strength < other.strength and not finding.row.general


def _completed(finding: LogFinding, lines: Sequence[Line]) -> LogFinding:
    """Return a finding with what the lines below it add: the end of its message, more words, the place of a crash."""
    finding = _with_next_line(finding, lines)
    if finding.row.after is not None:
        finding = _with_words_after(finding, lines, finding.index)
    if "Fatal Python error" in finding.line.text:
        finding = replace(finding, place=find_crash_place(lines, finding.index))
    return finding


def _with_next_line(finding: LogFinding, lines: Sequence[Line]) -> LogFinding:
    """Return a finding with the next line, if its message continues there."""
    after = [split_rank(line)[1].strip()[:200] for line in lines[finding.index + 1 : finding.index + 3]]
    continues = finding.kind == "setup" or finding.row in (BARE, PANIC)
    if after and continues and finding.sentence.endswith(":"):
        return replace(finding, sentence=f"{finding.sentence} {after[0]}")
    for text in after:
        if text.startswith("But your machine only has"):
            return replace(finding, sentence=f"{finding.sentence} {text}")
    return finding


def _add_summaries(found: dict[int, LogFinding], lines: Sequence[Line]) -> None:
    """Add torchrun's summaries, in place of its lines on the same failure, which have local ranks only."""
    for summary in find_summaries(lines):
        for index in [index for index in found if "local_rank: " in found[index].line.text]:
            del found[index]
        found[summary.index] = _summary_finding(lines[summary.index], summary)


def _with_words_after(finding: LogFinding, lines: Sequence[Line], index: int) -> LogFinding:
    """Return a finding with the words that its row's ``after`` finds in the lines of its rank below it."""
    row_, own = finding.row, split_rank(lines[index])[0]
    for line in lines[index + 1 : index + _AFTER]:
        rank, text = split_rank(line)
        match = row_.after.search(text[:READ]) if row_.after is not None and rank == own else None
        if match is not None:
            words = {**finding.values, **_groups(match)}
            old, new = fill_template(row_.sentence, finding.values), fill_template(row_.sentence, words)
            return replace(finding, values=words, sentence=finding.sentence.replace(old, new))
    return finding


def make_finding(
    row_: CauseRow, index: int, line: Line, words: Mapping[str, str], rank: int | None = None
) -> LogFinding:
    """Return a row's finding in a line, with its texts filled in from ``words`` and the rank."""
    known = {**words} if rank is None else {**words, "rank": str(rank)}
    return LogFinding(
        row=row_, index=index, line=line, rank=rank, node=words.get("node", ""), strength=row_.strength, values=words,
        sentence=fill_template(row_.sentence, known), advice=fill_template(row_.advice, known),
        command=fill_template(row_.command, known),
    )  # fmt: skip


def match_row(row_: CauseRow, line: Line, index: int = 0) -> LogFinding | None:
    """Return a row's finding in one line, None if it does not match."""
    label, text = split_rank(line)
    text = _REPR.sub(r"\1: \3", text[:READ])  # hydra prints an exception as its repr
    match = row_.pattern.search(text)
    if match is None or _is_no_cause(row_, text):
        return None
    words, ranks = _words(match)
    is_of_step = BY_STEPD.match(text) is not None and "pyxis: " not in text
    speaker = _STEPD.match(text) if is_of_step and row_.kind == "host-memory" else None
    if speaker is not None:
        words.setdefault("node", speaker[1])
    rank = ranks[0] if ranks else _rank_of(words, label, is_of_step)
    finding = replace(make_finding(row_, index, line, words, rank), ranks=ranks)
    return replace(finding, strength=max(finding.strength, Strength.HINT)) if finding.warned else finding


def _is_no_cause(row_: CauseRow, text: str) -> bool:
    """Return whether a line that a row matches is an info of NCCL, which retries, or a command's own connection."""
    return " NCCL INFO " in text or (id(row_) in _OF_RANKS and _BY_COMMAND.match(text) is not None)


def _rank_of(words: Mapping[str, str], label: int | None, is_of_step: bool) -> int | None:
    """Return the rank that a line is about: the rank in its text, else the rank in its label.

    A reporter's number counts within its process group, so the line's label is preferred to that. The label of a line
    about the step is that of the task whose stream it was written to.
    """
    named = words.get("rank") or (words.get("reporter") if label is None else None)
    if named and named.isdigit():
        return int(named)
    return None if is_of_step else label


def _words(match: re.Match[str]) -> tuple[dict[str, str], tuple[int, ...]]:
    """Return the words for a row's texts, and the ranks that they name."""
    words = _groups(match)
    words["0"] = match[0][:200]
    if words.get("ms", "").isdigit():
        words["limit"] = f"{int(words['ms']) / 1000:g} s"
    if "used" in words and len(words["used"] + words.get("limit", "")) < 40:
        words["compared"] = format_excess(int(words["used"]), int(words["limit"]))
    if "path" in words:
        words["path"] = shlex.quote(words["path"])
    if "/" in words.get("what", ""):
        words["folder"] = shlex.quote(words["what"].strip("'\"").rpartition("/")[0] or "/")
    ranks = parse_ranges(words.get("ranks", ""))
    words["s"], words["was"] = ("s", "were") if len(ranks) > 1 else ("", "was")  # task 3 was, tasks 3-5 were
    return words, ranks


def _groups(match: re.Match[str]) -> dict[str, str]:
    words = {name: value.strip() for name, value in match.groupdict().items() if value}
    for name in [name for name in words if name.endswith(_OTHER)]:  # the same word elsewhere in the pattern
        words.setdefault(name[: -len("_too")], words[name])
    return words


def classify(text: str) -> LogFinding | None:
    """Return the finding in a single text, such as a rank's recorded error; None if no row matches."""
    line = Line("", None, None, text)
    low = text.lower()
    found = [f for row_ in TABLE if any(n in low for n in row_.needles) and (f := match_row(row_, line)) is not None]
    return min(found, key=lambda f: f.strength, default=None)


def parse_ranges(text: str) -> tuple[int, ...]:
    """Return the numbers of ``1-3,5``, at most _MOST_RANKS since the text is not trusted."""
    numbers: list[int] = []
    for part in text.replace(" ", "").split(","):
        low, _, high = part.partition("-")
        if not low.isdigit() or (high and not high.isdigit()) or len(low) > 7 or len(high) > 7:
            continue
        room = _MOST_RANKS - len(numbers)
        numbers.extend(range(int(low), min(int(high or low) + 1, int(low) + room)))
    return tuple(numbers)


def fill_template(template: str, words: Mapping[str, str]) -> str:
    """Return a row's text with ``{words}`` filled in; a part in brackets is dropped if one of its words is missing."""

    def fill(match: re.Match[str]) -> str:
        if match["word"]:
            return words.get(match["word"], "?")
        part = match["part"]
        return _TEMPLATE.sub(fill, part) if all(name in words for name in _WORD.findall(part)) else ""

    return _TEMPLATE.sub(fill, template)  # in one pass: brackets and braces of a log's text stay


def _candidate_lines(lines: Sequence[Line]) -> Iterable[tuple[CauseRow, int]]:
    """Yield each row with the indexes of the lines that contain one of its needles."""
    joined = "\n".join(line.text for line in lines)
    low = joined.encode("ascii", "replace").lower().decode()  # lower() alone could change the length
    starts = list(accumulate((len(line.text) + 1 for line in lines), initial=0))
    where: dict[str, list[int]] = {}
    for row_ in (*TABLE, BARE):
        for needle in row_.needles:
            if needle not in where:
                where[needle] = _lines_with(low, needle, starts) if needle in low else []
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
    """Replace the findings inside a traceback by one at its last line: of the row that matches best, else EXCEPTION."""
    inside = [found[i] for i in range(raised.first, raised.end + 1) if i in found and _is_of(raised, found[i])]
    known = _known_by_place(_best_inside(inside, raised), raised, lines)
    for finding in inside:
        del found[finding.index]
    # online: a server that is not one of the ranks
    if known is None or (known.kind == "peer-lost" and raised.online):
        found[raised.index] = _unknown_exception(raised, lines)
    else:
        found[raised.index] = _known_exception(known, raised)


def _is_of(raised: Raised, finding: LogFinding) -> bool:
    """Return whether a finding is of the rank whose traceback its line is in."""
    return raised.rank in (finding.rank, split_rank(finding.line)[0])


def _best_inside(inside: Sequence[LogFinding], raised: Raised) -> LogFinding | None:
    """Return the finding that explains a traceback best: the strongest, of the exception that ended the program."""
    if raised.noticed:
        return None
    until = raised.until if raised.after else raised.end
    able = [f for f in inside if f.index <= until and _explains_exception(f)]
    best = min(able, key=lambda f: (f.strength, f.index <= raised.since, f.index), default=None)
    if best is not None and best.row is BUILD:  # the compiler's status comes first, the extension's name last
        return [f for f in inside if f.row is BUILD][-1]
    return best


def _explains_exception(finding: LogFinding) -> bool:
    return finding.row is not BARE and _CAUGHT.search(finding.line.text) is None


def _unknown_exception(raised: Raised, lines: Sequence[Line]) -> LogFinding:
    """Return the finding of an exception that no row explains, with the exceptions that it is chained to."""
    text = raised.text[:300] + (f" ({raised.origin})" if raised.origin else "")
    if raised.cause or raised.handled or raised.after:
        text = text.rstrip(".")
    if raised.cause not in ("", raised.text):
        text += f"; from {raised.cause[:120]}"
    text += _while_handling(raised)
    if raised.after:
        text += f"; the code that handled this exception then raised {raised.after[:120]}"
    finding = make_finding(EXCEPTION, raised.index, lines[raised.index], {"error": text}, raised.rank)
    return replace(finding, place=raised.place, strength=_strength_of_unknown(raised))


def _while_handling(raised: Raised) -> str:
    return f"; while handling {raised.handled[:120]}" if raised.handled else ""


def _strength_of_unknown(raised: Raised) -> Strength:
    """Return how well an exception explains the end that no row knows."""
    reports = raised.name.rpartition(".")[2] in _REPORTS or _SPAWNED.match(raised.text)
    if raised.harmless or reports:
        return Strength.ECHO
    return Strength.HINT if raised.threaded or raised.noticed else Strength.CAUSE


def _known_exception(known: LogFinding, raised: Raised) -> LogFinding:
    """Return the finding of an exception that a row explains, with what the program was doing."""
    finding = replace(known, index=raised.index, rank=raised.rank if known.rank is None else known.rank)
    if raised.activity and known.kind in _AMID and "checkpoint" not in finding.sentence:
        finding = replace(finding, sentence=f"{finding.sentence}, while {raised.activity}")
    if known.index > raised.since and raised.handled[:40] not in finding.sentence:
        finding = replace(finding, sentence=finding.sentence + _while_handling(raised))
    strength = Strength.ECHO if raised.harmless else known.strength
    return replace(finding, place=raised.place, strength=strength)


def _known_by_place(known: LogFinding | None, raised: Raised, lines: Sequence[Line]) -> LogFinding | None:
    """Return the finding in a traceback, or what it is by the library that raised it and by what that tried before."""
    if known is None:
        host = unreachable_host(lines, raised.first, raised.rank) if raised.online else ""
        error = {"error": f"{host}; then {raised.text[:200]}"}
        return make_finding(UNRESOLVED, raised.index, lines[raised.index], error, raised.rank) if host else None
    if known.kind in ("name-resolution", "network") and raised.online:
        return make_finding(UNRESOLVED, known.index, known.line, {"error": raised.text[:200]}, known.rank)
    if known.kind == "disk-full" and raised.in_semaphore:
        return make_finding(SHM_FULL, known.index, known.line, {}, known.rank)
    return known


def _summary_finding(line: Line, summary: Summary) -> LogFinding:
    """Return torchrun's finding on the rank that failed first: a cause if a signal ended it, else an echo."""
    code = summary.code or 0
    kind = _KINDS.get(code, "task-ended" if code >= 0 else "crashed")
    spared = {"spared": name_ranks(summary.spared), "listed": str(len(summary.codes))}
    values = {"status": str(code)} if code > 0 else spared
    ranks = summary.alike if code < 0 else tuple(rank for rank in (summary.rank,) if rank is not None)
    finding = make_finding(next(r for r in SLURM if r.kind == kind), summary.index, line, values, summary.rank)
    return replace(finding, ranks=ranks, node=summary.host, sentence=_summary_in_words(ranks, summary.host, code))


def _summary_in_words(ranks: Sequence[int], host: str, code: int) -> str:
    """Return how ranks ended by torchrun's exit code, which is negative for a signal."""
    who = name_ranks(ranks) or "a rank"
    if host and ranks:
        who += f" on {host}"
    if code >= 0:
        return f"{who} exited with status {code}"
    return f"{who} {'were' if len(ranks) > 1 else 'was'} killed by {_SIGNALS.get(-code, f'signal {-code}')}"


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-3, 8``, empty for none."""
    return f"rank{'s' * (len(ranks) > 1)} {format_tasks(ranks).replace(',', ', ')}" if ranks else ""


def _count_work(findings: list[LogFinding], lines: Sequence[Line]) -> list[LogFinding]:
    """Count the lines of work after each finding; a batch that was too large and was skipped did not end its rank."""
    if not findings:
        return findings
    work = _last_work(lines, min(f.index for f in findings))
    return [replace(f, work_after=_work_after(f, work, lines)) for f in findings]


def _last_work(lines: Sequence[Line], first: int) -> dict[int | str | None, list[int]]:
    """Return the indexes of the last lines of work of each rank after line ``first``, and of all as ``_ANY``."""
    work: dict[int | str | None, list[int]] = {_ANY: []}
    for index in range(len(lines) - 1, first, -1):
        if len(work[_ANY]) >= ENOUGH and len(work) > _MOST_COUNTED:
            break
        line = lines[index]
        if PROGRESS.search(line.text) is None or _by_slurm(line):  # which names steps too
            continue
        for whose in (_ANY, split_rank(line)[0]):
            of_rank = work.setdefault(whose, [])
            if len(of_rank) < ENOUGH:
                of_rank.append(index)
    return work


def _work_after(finding: LogFinding, work: Mapping[int | str | None, list[int]], lines: Sequence[Line]) -> int:
    if finding.kind == "cuda-memory" and _is_skipped(lines[finding.index : finding.index + 4]):
        return ENOUGH
    if _by_slurm(finding.line):
        return 0
    whose = _ANY if finding.rank is None else finding.rank
    return sum(index > finding.index for index in work.get(whose, []))


def _is_skipped(lines: Sequence[Line]) -> bool:
    return any(_SKIPPED.search(line.text[:READ]) for line in lines)


def _by_slurm(line: Line) -> bool:
    return line.text.startswith("srun:") or BY_STEPD.match(line.text) is not None
