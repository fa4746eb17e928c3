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
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
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
    found: dict[int, LogFinding] = {}
    for row_, index in _candidate_lines(lines):
        finding = match_row(row_, lines[index], index)
        known = found.get(index)
        if finding is not None and (known is None or (finding.strength < known.strength and not row_.general)):
            found[index] = finding
    raised = find_tracebacks(lines)
    for one in raised:
        _add_traceback(found, one, lines)
    merge_quoted(found, lines)
    for index, cut in found.items():
        after = [split_rank(line)[1].strip()[:200] for line in lines[index + 1 : index + 3]]
        continues = cut.kind == "setup" or cut.row in (BARE, PANIC)
        named = after[:1] if continues and cut.sentence.endswith(":") else []
        for text in named or [text for text in after if text.startswith("But your machine only has")]:
            found[index] = replace(cut, sentence=f"{cut.sentence} {text}")
        if cut.row.after is not None:
            found[index] = _with_words_after(cut, lines, index)
    for index in [i for i in found if "Fatal Python error" in found[i].line.text]:
        found[index] = replace(found[index], place=find_crash_place(lines, index))
    for summary in find_summaries(lines):
        for index in [i for i, one in found.items() if "local_rank: " in one.line.text]:
            del found[index]  # the same failure, with local ranks only
        found[summary.index] = _summary_finding(lines[summary.index], summary)
    apply_abort_messages(found, lines)
    findings = _count_work([found[index] for index in sorted(found)], lines)
    turned = find_nan_start(lines)
    if turned is not None:  # never marked as survived: the later lines of work are what shows it
        index, sentence = turned
        findings.append(make_finding(NAN, index, lines[index], {"error": sentence}, split_rank(lines[index])[0]))
    return findings


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
    rank, text = split_rank(line)
    text = _REPR.sub(r"\1: \3", text[:READ])  # hydra prints an exception as its repr
    match = row_.pattern.search(text)
    if match is None or " NCCL INFO " in text:  # NCCL retries it, or does without
        return None
    if id(row_) in _OF_RANKS and _BY_COMMAND.match(text):
        return None
    words = _groups(match)
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
    # a reporter's number counts within its process group, so the line's label is preferred
    named_rank = words.get("rank") or (words.get("reporter") if rank is None else None)
    if BY_STEPD.match(text) and "pyxis: " not in text:
        rank = None  # the label is that of the task whose stream it was written to, but the line is about the step
        speaker = _STEPD.match(text)
        if speaker is not None and row_.kind == "host-memory":
            words.setdefault("node", speaker[1])
    rank = ranks[0] if ranks else int(named_rank) if named_rank and named_rank.isdigit() else rank
    words["0"] = match[0][:200]
    finding = replace(make_finding(row_, index, line, words, rank), ranks=ranks)
    return replace(finding, strength=max(finding.strength, Strength.HINT)) if finding.warned else finding


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
    inside = [
        found[i]
        for i in range(raised.first, raised.end + 1)
        if i in found and (found[i].rank == raised.rank or split_rank(lines[i])[0] == raised.rank)
    ]
    until = -1 if raised.noticed else raised.until if raised.after else raised.end
    able = (f for f in inside if f.row is not BARE and f.index <= until and not _CAUGHT.search(f.line.text))
    known = min(able, key=lambda f: (f.strength, f.index <= raised.since, f.index), default=None)
    if known is not None and known.row is BUILD:  # the compiler's status comes first, the extension's name last
        known = max((f for f in inside if f.row is BUILD), key=lambda f: f.index)
    for one in inside:
        del found[one.index]
    known = _known_by_place(known, raised, lines)
    handled = f"; while handling {raised.handled[:120]}" if raised.handled else ""
    if known is None or (known.kind == "peer-lost" and raised.online):  # online: a server that is not one of the ranks
        text = raised.text[:300] + (f" ({raised.origin})" if raised.origin else "")
        text = text.rstrip(".") if raised.cause or raised.handled or raised.after else text
        text += f"; from {raised.cause[:120]}" if raised.cause not in ("", raised.text) else ""
        text += handled
        text += f"; the code that handled this exception then raised {raised.after[:120]}" if raised.after else ""
        finding = make_finding(EXCEPTION, raised.index, lines[raised.index], {"error": text}, raised.rank)
        echo = raised.harmless or raised.name.rpartition(".")[2] in _REPORTS or _SPAWNED.match(raised.text)
        weak = raised.threaded or raised.noticed
        strength = Strength.ECHO if echo else Strength.HINT if weak else Strength.CAUSE
    else:
        finding = replace(known, index=raised.index, rank=raised.rank if known.rank is None else known.rank)
        if raised.activity and known.kind in _AMID and "checkpoint" not in finding.sentence:
            finding = replace(finding, sentence=f"{finding.sentence}, while {raised.activity}")
        if known.index > raised.since and raised.handled[:40] not in finding.sentence:
            finding = replace(finding, sentence=finding.sentence + handled)
        strength = Strength.ECHO if raised.harmless else known.strength
    found[raised.index] = replace(finding, place=raised.place, strength=strength)


def _known_by_place(known: LogFinding | None, raised: Raised, lines: Sequence[Line]) -> LogFinding | None:
    """Return the finding in a traceback, or what it is by the library that raised it and by what that tried before."""
    if known is None and raised.online:
        host = unreachable_host(lines, raised.first, raised.rank)
        error = {"error": f"{host}; then {raised.text[:200]}"}
        return make_finding(UNRESOLVED, raised.index, lines[raised.index], error, raised.rank) if host else None
    if known is not None and known.kind in ("name-resolution", "network") and raised.online:
        return make_finding(UNRESOLVED, known.index, known.line, {"error": raised.text[:200]}, known.rank)
    if known is not None and known.kind == "disk-full" and raised.in_semaphore:
        return make_finding(SHM_FULL, known.index, known.line, {}, known.rank)
    return known


def _summary_finding(line: Line, summary: Summary) -> LogFinding:
    """Return torchrun's finding on the rank that failed first: a cause if a signal ended it, else an echo."""
    rank, code = summary.rank, summary.code or 0
    kind = "task-ended" if code >= 0 or code == -15 else "killed" if code == -9 else "crashed"
    spared = {"spared": name_ranks(summary.spared), "listed": str(len(summary.codes))}
    values = {"status": str(code)} if code > 0 else spared
    finding = make_finding(next(r for r in SLURM if r.kind == kind), summary.index, line, values, rank)
    ranks = summary.alike if code < 0 else () if rank is None else (rank,)
    who = name_ranks(ranks) or "a rank"
    who += f" on {summary.host}" if summary.host and ranks else ""
    how = _SIGNALS.get(-code, f"signal {-code}") if code < 0 else f"status {code}"
    sentence = (
        f"{who} {'were' if len(ranks) > 1 else 'was'} killed by {how}" if code < 0 else f"{who} exited with {how}"
    )
    return replace(finding, ranks=ranks, node=summary.host, sentence=sentence)


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-3, 8``, empty for none."""
    return f"rank{'s' * (len(ranks) > 1)} {format_tasks(ranks).replace(',', ', ')}" if ranks else ""


def _count_work(findings: list[LogFinding], lines: Sequence[Line]) -> list[LogFinding]:
    """Count the lines of work after each finding; a batch that was too large and was skipped did not end its rank."""
    if not findings:
        return findings
    after: dict[int | None, list[int]] = {}  # rank -> the indexes of its last lines of work, newest first
    everybody: list[int] = []
    first = min(f.index for f in findings)
    for index in range(len(lines) - 1, first, -1):
        if len(everybody) >= ENOUGH and len(after) > 64:
            break
        line = lines[index]
        if PROGRESS.search(line.text) is None or _by_slurm(line):  # which names steps too
            continue
        everybody.append(index)
        mine = after.setdefault(split_rank(line)[0], [])
        if len(mine) < ENOUGH:
            mine.append(index)
    marked = []
    for finding in findings:
        work = after.get(finding.rank, []) if finding.rank is not None else everybody[:ENOUGH]
        count = 0 if _by_slurm(finding.line) else sum(index > finding.index for index in work)
        if finding.kind == "cuda-memory":
            near = lines[finding.index : finding.index + 4]
            count = ENOUGH if any(_SKIPPED.search(line.text[:READ]) for line in near) else count
        marked.append(replace(finding, work_after=count))
    return marked


def _by_slurm(line: Line) -> bool:
    return line.text.startswith("srun:") or BY_STEPD.match(line.text) is not None
