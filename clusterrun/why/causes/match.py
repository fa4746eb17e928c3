"""Match the rows of the tables against a line: the words that the line gives, and the texts that they fill in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusterrun.base.job import format_tasks
from clusterrun.base.units import format_bytes
from clusterrun.why.causes.model import BY_STEPD, READ, CauseRow, Line, LogFinding, Strength
from clusterrun.why.causes.table_files import FILES
from clusterrun.why.causes.table_gpu import GPU
from clusterrun.why.causes.table_launch import LAUNCH
from clusterrun.why.causes.table_peers import PEERS
from clusterrun.why.causes.table_python import PYTHON
from clusterrun.why.causes.table_slurm import SLURM
from clusterrun.why.causes.tracebacks import split_rank

#: All rows; of two of equal strength that match one line the earlier counts.
TABLE: tuple[CauseRow, ...] = (*SLURM, *GPU, *PEERS, *PYTHON, *FILES, *LAUNCH)
FIRST_OF_KIND = {row_.kind: row_ for row_ in reversed(TABLE)}

_MOST_RANKS = 4_096  # in one line of srun
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{0,7}))?")
_OTHER = ("_too", "_old")
#: What Slurm's commands report of themselves. The rows about connections of ranks do not explain it.
_BY_COMMAND = re.compile(r"(?:srun|sbatch|salloc): (?:error|fatal): ")
_OF_RANKS = frozenset(map(id, PEERS))
_STEPD = re.compile(r"slurmstepd-([\w.-]+): ")
_REPR = re.compile(r"^(\w+(?:Error|Exception))\((?:\d+, )?(['\"])(.*)\2,?\)$")
_TEMPLATE = re.compile(r"\[(?P<part>[^\]]*)\]|\{(?P<word>\w+)\}")
_MIB = 1024 * 1024
_PAGE = 4096


def match_row(row_: CauseRow, line: Line, index: int = 0) -> LogFinding | None:
    """Return a row's finding in one line, None if it does not match."""
    label, text = split_rank(line)
    text = _REPR.sub(r"\1: \3", text[:READ])  # hydra prints an exception as its repr
    match = row_.pattern.search(text)
    if match is None or _is_no_cause(row_, text):
        return None
    words, ranks = _words(match)
    is_of_step = BY_STEPD.match(text) is not None and "pyxis: " not in text
    speaker = _STEPD.match(text)
    if speaker is not None and row_.kind == "host-memory":
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
    if "rank" in words:
        return int(words["rank"])
    if "reporter" in words and label is None:
        return int(words["reporter"])
    return None if is_of_step else label


def _words(match: re.Match[str]) -> tuple[dict[str, str], tuple[int, ...]]:
    """Return the words for a row's texts, and the ranks that they name."""
    words = groups(match)
    words["0"] = match[0][:200]
    if "ms" in words:
        words["limit"] = f"{int(words['ms']) / 1000:g} s"
    if "used" in words:
        words["compared"] = format_excess(int(words["used"]), int(words["limit"]))
    if "path" in words:
        words["path"] = shlex.quote(words["path"])
    if "/" in words.get("what", ""):
        words["folder"] = shlex.quote(words["what"].strip("'\"").rpartition("/")[0] or "/")
    ranks = parse_ranges(words.get("ranks", ""))
    words["s"], words["was"] = ("s", "were") if len(ranks) > 1 else ("", "was")  # task 3 was, tasks 3-5 were
    return words, ranks


def groups(match: re.Match[str]) -> dict[str, str]:
    """Return the words that a pattern finds, by name; ``what_too`` is the same word elsewhere in the pattern."""
    words: dict[str, str] = {}
    for name, value in match.groupdict().items():
        if value:
            words[name] = value.strip()
            words.setdefault(name.removesuffix("_too").removesuffix("_old"), value.strip())
    return words


def format_excess(used: int, limit: int) -> str:
    """Return ``305.9 MiB > 300.0 MiB`` of Slurm's message on a memory limit; without a unit if it is ambiguous.

    Older releases (``Step 7.0``) count in KiB, newer ones (``StepId=7.0``) in bytes: then ``used`` is a number of whole
    pages and ``limit`` of whole MiB. Otherwise, if one is not even whole KiB or whole MiB, the unit is KiB.
    """
    if used % _PAGE == 0 and limit % _MIB == 0:
        unit, name = 1, "bytes"
    elif used % 1024 or limit % _MIB:
        unit, name = 1024, "KiB"
    else:
        return f"{used} > {limit}"
    more, less = format_bytes(used * unit), format_bytes(limit * unit)
    return f"{more} > {less}" if more != less else f"{used} > {limit} {name}"


def classify(text: str) -> LogFinding | None:
    """Return the finding in a single text, such as a rank's recorded error; None if no row matches."""
    line = Line("", None, None, text)
    matches = [match_row(row_, line) for row_ in TABLE]
    return min(filter(None, matches), key=lambda f: f.strength, default=None)


def make_finding(
    row_: CauseRow, index: int, line: Line, words: Mapping[str, str], rank: int | None = None
) -> LogFinding:
    """Return a row's finding in a line, with its texts filled in from ``words`` and the rank."""
    filled = {**words} if rank is None else {**words, "rank": str(rank)}
    return LogFinding(
        row=row_, index=index, line=line, rank=rank, node=words.get("node", ""), strength=row_.strength, values=words,
        sentence=fill_template(row_.sentence, filled), advice=fill_template(row_.advice, filled),
        command=fill_template(row_.command, filled),
    )  # fmt: skip


def fill_template(template: str, words: Mapping[str, str]) -> str:
    """Return a row's text with ``{words}`` filled in; a part in brackets is dropped if one of its words is missing."""

    def fill(match: re.Match[str]) -> str:
        if match["word"]:
            return words.get(match["word"], "?")
        part = match["part"]
        names = (word["word"] for word in _TEMPLATE.finditer(part))
        return _TEMPLATE.sub(fill, part) if words.keys() >= set(names) else ""

    return _TEMPLATE.sub(fill, template)  # in one pass: brackets and braces of a log's text stay


def parse_ranges(text: str) -> tuple[int, ...]:
    """Return the numbers of ``1-3,5``, at most _MOST_RANKS since the text is not trusted."""
    numbers: list[int] = []
    for part in text.replace(" ", "").split(","):
        span = _RANGE.fullmatch(part)
        if span is not None:
            low, high = int(span[1]), int(span[2] or span[1])
            numbers.extend(range(low, high + 1)[: _MOST_RANKS - len(numbers)])
    return tuple(numbers)


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-3, 8``, empty for none."""
    return f"rank{'s' * (len(ranks) > 1)} {format_tasks(ranks).replace(',', ', ')}" if ranks else ""
