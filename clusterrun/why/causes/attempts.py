"""Find what a library tried before it raised an exception that only says that it gave up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from clusterrun.why.causes.model import READ, Line, LogFinding
from clusterrun.why.causes.tracebacks import split_rank

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


def unreachable_host(lines: Sequence[Line], first: int, rank: int | None) -> str:
    """Return the host that a request of this rank did not reach, and why, by a retry shortly before line ``first``."""
    for line in reversed(lines[max(0, first - _NEAR) : first]):
        own, text = split_rank(line)
        host, why = _HOST.search(text[:READ]), _UNREACHABLE.search(text[:READ])
        if own == rank and host and why and _RETRIED.search(text[:READ]):
            return f"{host['host']}: {why[0]}"
    return ""


def merge_quoted(found: dict[int, LogFinding], lines: Sequence[Line]) -> None:
    """Let the exceptions that a message quotes, one for each thing it tried, be the reason of the exception itself."""
    for start, end in _quotations(lines):
        rank = split_rank(lines[start])[0]
        before = _of_rank(found, range(max(0, start - _NEAR), start), rank)
        quoted = _of_rank(found, range(start + 1, end), rank)
        if not before or not quoted:
            continue
        outer = before[-1]
        for one in quoted:
            del found[one.index]
        tried = "; ".join(dict.fromkeys(_attempt(lines, one.index) for one in quoted))
        sentence = f"{_headline(outer.line)}: {tried}"
        found[outer.index] = replace(
            quoted[-1], index=outer.index, line=outer.line, place=outer.place, sentence=sentence, advice=_BUILD
        )


def _of_rank(found: Mapping[int, LogFinding], where: range, rank: int | None) -> list[LogFinding]:
    """Return the findings of a rank in these lines, in order."""
    return [found[index] for index in where if index in found and found[index].rank == rank]


def _quotations(lines: Sequence[Line]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each quotation of tracebacks in a message."""
    starts: dict[int | None, int] = {}
    for index, line in enumerate(lines):
        mark = _QUOTED.search(line.text) if "traceback]" in line.text else None
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


def _headline(line: Line) -> str:
    """Return the first sentence of an exception's message."""
    text = split_rank(line)[1].strip()[:_SHOWN]
    return re.split(r"(?<=\.)\s", text)[0].rstrip(".:")
