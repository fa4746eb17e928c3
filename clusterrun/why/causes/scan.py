"""Find what the tables know in the lines of one log: one finding per line, traceback or summary of torchrun."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from signal import SIGABRT, SIGTERM

from clusterrun.why.causes.match import FIRST_OF_KIND, TABLE, fill_template, groups, make_finding, match_row, name_ranks
from clusterrun.why.causes.model import ENOUGH, READ, Line, LogFinding, Strength
from clusterrun.why.causes.nan_series import NAN, find_nan_start
from clusterrun.why.causes.table_files import UNRESOLVED
from clusterrun.why.causes.table_gpu import BUILD
from clusterrun.why.causes.table_launch import PANIC, TERMINATE
from clusterrun.why.causes.table_python import BARE, EXCEPTION, SHM_FULL
from clusterrun.why.causes.tracebacks import Raised, find_crash_place, find_tracebacks, split_rank, texts_after

PROGRESS = re.compile(r"(?i)\b(?:step|iter(?:ation)?|epoch|batch|loss|it/s|s/it|tokens?/s)\b\W{0,3}\d|\d+%\|")
_MOST_OF_ONE = 2_000  # lines of one file that a needle may name: more of the same word adds nothing
_AFTER = 60  # lines below a finding that may say more
_ANY, _MOST_COUNTED = "any", 65  # ranks whose lines of work are counted
_SKIPPED = re.compile(r"(?i)\bskip(?:s|ped|ping)? (?:this |the |a )?batch\b")


def scan(lines: Sequence[Line]) -> list[LogFinding]:
    """Return the findings in the lines of one file, in order."""
    by_index = _match_rows(lines)
    for raised in find_tracebacks(lines):
        _add_traceback(by_index, raised, lines)
    _merge_quoted(by_index, lines)
    for index, finding in by_index.items():
        by_index[index] = _completed(finding, lines)
    _add_summaries(by_index, lines)
    _prefer_abort_messages(by_index, lines)
    findings = _count_work([by_index[index] for index in sorted(by_index)], lines)
    turned = find_nan_start(lines)
    if turned is not None:  # never marked as survived: the later lines of work are what shows it
        index, sentence = turned
        findings.append(make_finding(NAN, index, lines[index], {"error": sentence}, split_rank(lines[index])[0]))
    return findings


# -- single lines ------------------------------------------------------------------------------------------------------


def _match_rows(lines: Sequence[Line]) -> dict[int, LogFinding]:
    """Return the strongest finding of each line, of two of equal strength that of the earlier row."""
    indexes = _lines_by_needle(lines)
    by_index: dict[int, LogFinding] = {}
    for row_ in (*TABLE, BARE):
        for needle in row_.needles:
            for index in indexes[needle]:
                finding = match_row(row_, lines[index], index)
                if finding is not None and _is_better(finding, by_index.get(index)):
                    by_index[index] = finding
    return by_index


def _is_better(finding: LogFinding, other: LogFinding | None) -> bool:
    return other is None or (finding.strength < other.strength and not finding.row.general)


def _lines_by_needle(lines: Sequence[Line]) -> dict[str, list[int]]:
    """Return the indexes of the lines that contain each row's needles, upper or lower case."""
    joined = "\n".join(line.text for line in lines)
    low = joined.encode("ascii", "replace").lower().decode()  # lower() alone could change the length
    ends = list(accumulate(len(line.text) + 1 for line in lines))
    return {needle: _lines_with(low, needle, ends) for row_ in (*TABLE, BARE) for needle in row_.needles}


def _lines_with(low: str, needle: str, ends: list[int]) -> list[int]:
    indexes: list[int] = []
    at = low.find(needle)
    while at >= 0 and len(indexes) < _MOST_OF_ONE:
        indexes.append(bisect_right(ends, at))
        at = low.find(needle, ends[indexes[-1]])
    return indexes


def _completed(finding: LogFinding, lines: Sequence[Line]) -> LogFinding:
    """Return a finding with what the lines below it add: the end of its message, more words, the place of a crash."""
    continues = finding.kind == "setup" or finding.row in (BARE, PANIC)
    if continues and finding.sentence.endswith(":") and finding.index + 1 < len(lines):
        following = split_rank(lines[finding.index + 1])[1].strip()[:200]
        finding = replace(finding, sentence=f"{finding.sentence} {following}")
    if "Fatal Python error" in finding.line.text:
        finding = replace(finding, place=find_crash_place(lines, finding.index))
    return _with_words_after(finding, lines)


def _with_words_after(finding: LogFinding, lines: Sequence[Line]) -> LogFinding:
    """Return a finding with the words that its row's ``after`` finds in the lines of its rank below it."""
    row_ = finding.row
    if row_.after is None:
        return finding
    for text in texts_after(lines, finding.index, _AFTER):
        match = row_.after.search(text[:READ])
        if match is not None:
            words = {**finding.values, **groups(match)}
            old, new = fill_template(row_.sentence, finding.values), fill_template(row_.sentence, words)
            return replace(finding, values=words, sentence=finding.sentence.replace(old, new))
    return finding


# -- tracebacks --------------------------------------------------------------------------------------------------------

#: exceptions that only report another process's end
_REPORTS = frozenset(
    ("ChildFailedError", "SystemExit", "CalledProcessError", "ProcessExitedException", "TuneError", "RayActorError")
)
#: torch.multiprocessing's report of a process that ended, before ProcessExitedException
_SPAWNED = re.compile(r"Exception: process \d+ terminated with exit code \d+$")
#: torch's announcement of a worker's traceback, whose own message follows
_CAUGHT = re.compile(r"Caught \w+ in (?:DataLoader worker process|pin memory thread|replica) ")
#: kinds whose sentence says what the program was doing
_AMID = frozenset(
    ("disk-full", "quota", "file-system", "read-only", "permission", "nccl-error", "no-gpu", "cuda-memory",
     "host-memory", "interrupted")
)  # fmt: skip


def _add_traceback(by_index: dict[int, LogFinding], raised: Raised, lines: Sequence[Line]) -> None:
    """Replace the findings inside a traceback by one at its last line: of the row that matches best, else EXCEPTION."""
    inside = [by_index[i] for i in range(raised.first, raised.end + 1) if i in by_index and _is_of(raised, by_index[i])]
    for finding in inside:
        del by_index[finding.index]
    matched = _known_by_place(_best_inside(inside, raised), raised, lines)
    if matched is None:
        by_index[raised.index] = _unknown_exception(raised, lines)
    else:
        by_index[raised.index] = _known_exception(matched, raised)


def _is_of(raised: Raised, finding: LogFinding) -> bool:
    """Return whether a finding is of the rank whose traceback its line is in."""
    return raised.rank in (finding.rank, split_rank(finding.line)[0])


def _best_inside(inside: Sequence[LogFinding], raised: Raised) -> LogFinding | None:
    """Return the finding that explains a traceback best: the strongest, of the exception that ended the program."""
    able = [f for f in inside if f.index <= raised.until and _explains_exception(f)]
    best = min(able, key=lambda f: (f.strength, f.index <= raised.since, f.index), default=None)
    if best is not None and best.row is BUILD:  # the compiler's status comes first, the extension's name last
        return [f for f in inside if f.row is BUILD][-1]
    return best


def _explains_exception(finding: LogFinding) -> bool:
    return finding.row is not BARE and _CAUGHT.search(finding.line.text) is None


def _known_by_place(matched: LogFinding | None, raised: Raised, lines: Sequence[Line]) -> LogFinding | None:
    """Return the finding in a traceback, or what it is by the library that raised it and by what that tried before."""
    if raised.noticed:
        return None
    if matched is None:
        host = _unreachable_host(lines, raised)
        error = {"error": f"{host}; then {raised.text[:200]}"}
        return make_finding(UNRESOLVED, raised.index, lines[raised.index], error, raised.rank) if host else None
    if raised.online and matched.kind in ("name-resolution", "network"):
        return make_finding(UNRESOLVED, matched.index, matched.line, {"error": raised.text[:200]}, matched.rank)
    if raised.online and matched.kind == "peer-lost":  # of a server, which is not one of the ranks
        return None
    if raised.in_semaphore and matched.kind == "disk-full":
        return make_finding(SHM_FULL, matched.index, matched.line, {}, matched.rank)
    return matched


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


def _known_exception(matched: LogFinding, raised: Raised) -> LogFinding:
    """Return the finding of an exception that a row explains, with what the program was doing."""
    sentence = matched.sentence
    if raised.activity and matched.kind in _AMID and "checkpoint" not in sentence:
        sentence += f", while {raised.activity}"
    if raised.handled[:40] not in sentence:
        sentence += _while_handling(raised)
    return replace(
        matched,
        index=raised.index,
        rank=raised.rank if matched.rank is None else matched.rank,
        place=raised.place,
        sentence=sentence,
        strength=Strength.ECHO if raised.harmless else matched.strength,
    )


# -- what a library tried before it raised an exception that only says that it gave up ---------------------------------

_NEAR = 60  # lines of all ranks between an attempt and the exception
_SHOWN = 160  # characters of an attempt
_RETRIED = re.compile(r"(?i)\bretry(?:ing)?\b")
_HOST = re.compile(r"https?://(?:[^/@\s\"']*@)?(?P<host>[\w.-]+)")
_UNREACHABLE = re.compile(
    r"Name or service not known|Temporary failure in name resolution|No address associated with hostname"
    r"|Network is unreachable|No route to host"
)
_QUOTED = re.compile(r"\[(?P<edge>start|end) of [^\]]*traceback\]")
_HEADING = re.compile(r"(?!Traceback|File )\w[^:]{0,60}:")
_BUILD = (
    "install a build of this package that fits the installed torch and its CUDA version; if it fits, install the"
    " libraries named here that it needs, or load the module that provides them"
)


def _unreachable_host(lines: Sequence[Line], raised: Raised) -> str:
    """Return the host that a request of this rank did not reach, and why, by a retry shortly before the exception."""
    if not raised.online:
        return ""
    for line in reversed(lines[max(0, raised.first - _NEAR) : raised.first]):
        rank, text = split_rank(line)
        host, why = _HOST.search(text[:READ]), _UNREACHABLE.search(text[:READ])
        if rank == raised.rank and host and why and _RETRIED.search(text[:READ]):
            return f"{host['host']}: {why[0]}"
    return ""


def _merge_quoted(by_index: dict[int, LogFinding], lines: Sequence[Line]) -> None:
    """Let the exceptions that a message quotes, one for each thing it tried, be the reason of the exception itself."""
    for start, end in _quotations(lines):
        rank = split_rank(lines[start])[0]
        before = _of_rank(by_index, range(max(0, start - _NEAR), start), rank)
        quoted = _of_rank(by_index, range(start + 1, end), rank)
        if not before or not quoted:
            continue
        for finding in quoted:
            del by_index[finding.index]
        outer = before[-1]
        tried = "; ".join(dict.fromkeys(_attempt(lines, finding.index) for finding in quoted))
        headline = re.split(r"(?<=\.)\s", split_rank(outer.line)[1].strip()[:_SHOWN])[0].rstrip(".:")
        by_index[outer.index] = replace(
            quoted[-1], index=outer.index, line=outer.line, place=outer.place, sentence=f"{headline}: {tried}",
            advice=_BUILD,
        )  # fmt: skip


def _of_rank(by_index: Mapping[int, LogFinding], where: range, rank: int | None) -> list[LogFinding]:
    """Return the findings of a rank in these lines, in order."""
    return [by_index[index] for index in where if index in by_index and by_index[index].rank == rank]


def _quotations(lines: Sequence[Line]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each quotation of tracebacks in a message."""
    starts: dict[int | None, int] = {}
    for index, line in enumerate(lines):
        mark = _QUOTED.search(line.text)
        if mark is None:
            continue
        rank = split_rank(line)[0]
        if mark["edge"] == "start":
            starts[rank] = index
        elif rank in starts:
            yield starts.pop(rank), index


def _attempt(lines: Sequence[Line], index: int) -> str:
    """Return a quoted exception's message, after the heading of its traceback if there is one."""
    rank, text = split_rank(lines[index])
    message = text.partition(": ")[2].strip()[:_SHOWN] or text[:_SHOWN]
    for line in reversed(lines[max(0, index - _NEAR) : index]):
        own, before = split_rank(line)
        if own == rank and _HEADING.fullmatch(before.strip()):
            return f"{before.strip()} {message}"
    return message


# -- torchrun's summary of the failures --------------------------------------------------------------------------------

SUMMARY = "Root Cause (first observed failure):"
_LONGEST = 4_000  # lines before it, which list the other failures
_NUMBERS = re.compile(r"(?m)^ *(rank|exitcode) *: *(-?\d{1,9})")
_NODE = re.compile(r"(?m)^ *host *: *(?P<host>\S+)")
_FAILURE = re.compile(r"(?m)^ *rank *: *(\d+).*\n *exitcode *: *(-?\d+)")
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
_KINDS = {-9: "killed", -15: "task-ended"}  # by torchrun's exit code, which is negative for a signal


def _add_summaries(by_index: dict[int, LogFinding], lines: Sequence[Line]) -> None:
    """Add torchrun's summaries, in place of its lines on the same failure, which have local ranks only."""
    for index, line in enumerate(lines):
        if SUMMARY in line.text:
            for local in [at for at in by_index if "local_rank: " in by_index[at].line.text]:
                del by_index[local]
            by_index[index] = _summary_finding(lines, index)


def _summary_finding(lines: Sequence[Line], index: int) -> LogFinding:
    """Return torchrun's finding on the rank that failed first: a cause if a signal ended it, else an echo."""
    text = "\n".join(texts_after(lines, index, 40))
    numbers = {name: int(number) for name, number in reversed(_NUMBERS.findall(text))}  # of two the first one counts
    rank, code, on = numbers.get("rank"), numbers.get("exitcode", 0), _NODE.search(text)
    host = on["host"] if on is not None else ""
    codes = _listed_codes(lines, index)
    if rank is not None:
        codes[rank] = code
    words = {"status": str(code)} if code > 0 else {"spared": _spared(codes), "listed": str(len(codes))}
    kind = _KINDS.get(code, "task-ended" if code >= 0 else "crashed")
    finding = make_finding(FIRST_OF_KIND[kind], index, lines[index], words, rank)
    alike = [other for other in sorted(codes) if other == rank or codes[other] == code < 0]
    return replace(finding, ranks=tuple(alike), node=host, sentence=_summary_in_words(alike, host, code))


def _listed_codes(lines: Sequence[Line], index: int) -> dict[int, int]:
    """Return the exit codes of all ranks of the node, by the list of failures that ends at a summary."""
    label, _ = split_rank(lines[index])
    before = map(split_rank, lines[max(0, index - _LONGEST) : index])
    texts = "".join(f"\n{text}" for rank, text in before if rank == label)
    _, heading, failures = texts.rpartition("\nFailures:")
    return {int(rank): int(code) for rank, code in _FAILURE.findall(failures)} if heading else {}


def _spared(codes: Mapping[int, int]) -> str:
    """Name the ranks, less than half, that torchrun ended with SIGTERM after all others of its node had aborted."""
    ended = [rank for rank, code in codes.items() if code == -SIGTERM]
    aborted = [rank for rank, code in codes.items() if code == -SIGABRT]
    return name_ranks(ended) if len(ended) < len(aborted) == len(codes) - len(ended) else ""


def _summary_in_words(ranks: Sequence[int], host: str, code: int) -> str:
    """Return how ranks ended by torchrun's exit code."""
    who = name_ranks(ranks) or "a rank"
    if host and ranks:
        who += f" on {host}"
    if code >= 0:
        return f"{who} exited with status {code}"
    return f"{who} {'were' if len(ranks) > 1 else 'was'} killed by {_SIGNALS.get(-code, f'signal {-code}')}"


# -- aborts ------------------------------------------------------------------------------------------------------------

_ABORT = re.compile(r"(?i)\babort|signal 6|SIGABRT")
_WHAT = re.compile(r"^\s*what\(\):\s+(?P<what>\S.{0,300})")


def _prefer_abort_messages(by_index: dict[int, LogFinding], lines: Sequence[Line]) -> None:
    """Prefer a process's own abort message (``what()``) to later reports of the abort, in place."""
    aborted = sorted(index for index, finding in by_index.items() if finding.row is TERMINATE)
    first = min(aborted, default=len(lines))
    for index, finding in list(by_index.items()):
        if index > first and _reports_abort(finding):
            by_index[index] = replace(finding, strength=Strength.ECHO)
    for index in aborted:
        at, what = _message_of_abort(lines, index)
        if at in by_index:
            del by_index[index]  # a row matches the message itself
        elif what:
            by_index[index] = replace(by_index[index], sentence=f"{by_index[index].sentence}: {what}")


def _message_of_abort(lines: Sequence[Line], index: int) -> tuple[int, str]:
    """Return the line with the message of an abort, and the message; -1 and an empty text without one."""
    for at in range(index + 1, min(index + 4, len(lines))):
        message = _WHAT.match(split_rank(lines[at])[1])
        if message is not None:
            return at, message["what"]
    return -1, ""


def _reports_abort(finding: LogFinding) -> bool:
    return finding.kind == "crashed" and finding.row is not TERMINATE and _ABORT.search(finding.sentence) is not None


# -- work after a finding ----------------------------------------------------------------------------------------------


def _count_work(findings: list[LogFinding], lines: Sequence[Line]) -> list[LogFinding]:
    """Count the lines of work after each finding; a batch that was too large and was skipped did not end its rank."""
    if not findings:
        return findings
    work = _last_work(lines, findings[0].index)
    return [replace(f, work_after=_work_after(f, work, lines)) for f in findings]


def _last_work(lines: Sequence[Line], first: int) -> dict[int | str | None, list[int]]:
    """Return the indexes of the last lines of work of each rank after line ``first``, and of all as ``_ANY``."""
    work: dict[int | str | None, list[int]] = {_ANY: []}
    for index in range(len(lines) - 1, first, -1):
        if len(work[_ANY]) >= ENOUGH and len(work) > _MOST_COUNTED:
            break
        line = lines[index]
        if PROGRESS.search(line.text) is None or line.is_slurms:  # which names steps too
            continue
        for whose in (_ANY, split_rank(line)[0]):
            of_rank = work.setdefault(whose, [])
            if len(of_rank) < ENOUGH:
                of_rank.append(index)
    return work


def _work_after(finding: LogFinding, work: Mapping[int | str | None, list[int]], lines: Sequence[Line]) -> int:
    if finding.kind == "cuda-memory" and _is_skipped(lines[finding.index : finding.index + 4]):
        return ENOUGH
    if finding.line.is_slurms:
        return 0
    whose = _ANY if finding.rank is None else finding.rank
    return sum(index > finding.index for index in work.get(whose, []))


def _is_skipped(lines: Sequence[Line]) -> bool:
    return any(_SKIPPED.search(line.text[:READ]) for line in lines)
