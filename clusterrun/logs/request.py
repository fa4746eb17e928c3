"""What the user asks of a job's logs: the flags of ``clusterrun logs``, parsed into a ``LogRequest``.

A flag that selects lines is an option in ``cli/logs.py``, a field of ``LineFilter`` that ``filters`` reads, and a line
of ``parse_request``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.errors import RequestError
from clusterrun.base.job import format_tasks
from clusterrun.base.units import parse_since
from clusterrun.logs.complaints import ErrorFilter
from clusterrun.logs.files import LogFile, Streams
from clusterrun.logs.filters import Filter, PatternFilter
from clusterrun.logs.labels import Labels
from clusterrun.terminal.paint import has_colours

_MOST = 1_000_000  # ranks; a larger number is a typing mistake
_HEAD = 256 * 1024  # bytes at each end of a log that are searched for labels
_LABEL = re.compile(rb"^ *\d{1,10}: ?", re.MULTILINE)
_PREFIX = re.compile(rb"^(?: *\d{1,10}: ?)?\[rank\d+\]:", re.MULTILINE)


@dataclass(frozen=True)
class LineFilter:
    """Which lines to show."""

    stream: Streams = "both"
    grep: re.Pattern[str] | None = None
    errors: bool = False
    exclude: re.Pattern[str] | None = None

    def filters(self, world_size: int | None) -> list[Filter]:
        """Return new filters for one pass over one file. ErrorFilter comes first, as it must be given every line."""
        labels = Labels(world_size)
        filters: list[Filter] = [ErrorFilter(labels)] if self.errors else []
        if self.grep is not None:
            filters.append(PatternFilter(self.grep, labels))
        if self.exclude is not None:
            filters.append(PatternFilter(self.exclude, labels, exclude=True))
        return filters


@dataclass(frozen=True)
class DisplayFormat:
    """How to print lines. ``terminal``: for people, else for programs. ``fold``: a line of many ranks once.

    ``escape``: for programs too as text in which nothing acts on a terminal, even if the log is the user's own.
    """

    terminal: bool = False
    colour: bool = False
    fold: bool = False
    raw: bool = False
    escape: bool = False


class Place(NamedTuple):
    """How far a file was printed: an offset, the bytes before it in hex, and whether its unfinished lines were too."""

    at: int
    mark: str = ""
    ended: bool = False


@dataclass(frozen=True)
class Resume:
    """Print frames. ``places`` are those of the last frame of each file, ``job`` is that of an earlier connection.

    With a ``job``, a file without a place is new; and names such as ``last``, which may mean another job by now, do
    not count.
    """

    places: Mapping[str, Place] = field(default_factory=dict)
    job: str = ""


@dataclass(frozen=True)
class LogRequest:
    """Which lines of a job's logs to show, from where on, and how. ``since`` is in seconds since 1970.

    ``attempt`` is the number of restarts, with or without the number of a launch.
    """

    filter: LineFilter = LineFilter()
    display: DisplayFormat = DisplayFormat()
    tail: int | None = None
    since: float | None = None
    ranks: frozenset[int] = frozenset()
    nodes: tuple[str, ...] = ()
    attempt: tuple[int, ...] = ()
    follow: bool = False
    resume: Resume | None = None
    """With it, followed logs are printed as frames."""


def parse_request(flags: Mapping[str, Any], *, now: float, tty: bool, environ: Mapping[str, str]) -> LogRequest:
    """Parse the values of the flags, by name. Raises RequestError."""
    grep, exclude, since = flags["grep"], flags["exclude"], flags["since"]
    return LogRequest(
        filter=LineFilter(
            stream=flags["stream"],
            grep=None if grep is None else compile_grep(grep),
            errors=flags["errors"],
            exclude=None if exclude is None else compile_grep(exclude, "--exclude"),
        ),
        display=detect_format(tty, environ, fold=not flags["no_fold"], raw=flags["raw"]),
        tail=flags["lines"],
        since=None if since is None else parse_since(since, now),
        ranks=parse_ranks(flags["rank"]),
        nodes=tuple(flags["node"]),
        attempt=() if flags["attempt"] is None else parse_attempt(flags["attempt"]),
        follow=flags["follow"],
    )


def detect_format(tty: bool, environ: Mapping[str, str], *, fold: bool = True, raw: bool = False) -> DisplayFormat:
    """Return the format for an output: folded on a terminal, in colour if TERM has colours and NO_COLOR is not set.

    A command of another machine (``--remote``) writes into a pipe that may end at a terminal there.
    """
    colour = has_colours(environ, is_terminal=tty)
    return DisplayFormat(terminal=tty, colour=colour, fold=tty and fold, raw=raw, escape="CLUSTERRUN_REMOTE" in environ)


def compile_grep(pattern: str, flag: str = "--grep") -> re.Pattern[str]:
    """Compile the Python regular expression of a flag. Raises RequestError with the position of the error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of syntax that may change; that does not help the user
            return re.compile(pattern)
    except re.error as error:
        where = "" if error.pos is None else f" at character {error.pos + 1}"
        raise RequestError(
            f"{flag}: {error.msg}{where} of {pattern!r}",
            hint="to match a literal ( ) [ ] { } . * + ? | ^ $ \\, put a backslash before it",
        ) from error
    except (OverflowError, RecursionError) as error:
        raise RequestError(f"{flag}: {pattern[:40]!r} is too large", hint="use a simpler pattern") from error


def parse_attempt(text: str) -> tuple[int, ...]:
    """Parse an attempt as ``1``, or a launch of it as ``1.2``. Raises RequestError."""
    match = re.fullmatch(r"(\d{1,9})(?:\.(\d{1,9}))?", text, re.ASCII)
    if match is None:
        raise RequestError(
            f"--attempt: {text[:40]!r} is not a valid attempt", hint="for example --attempt 1 or --attempt 0.2"
        )
    return tuple(int(number) for number in match.groups() if number is not None)


# -- ranks and nodes -----------------------------------------------------------------------------------------------


RankFilter = tuple[frozenset[int] | None, re.Pattern[str] | None]
"""The lines of some ranks: those with these srun labels (None: any), or with this prefix if ranks share a label."""


def parse_ranks(texts: Iterable[str]) -> frozenset[int]:
    """Parse ranks as ``3``, ``0-7`` or ``0-3,8``. Raises RequestError."""
    found: set[int] = set()
    for text in texts:
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part, re.ASCII)
            if match is None:
                raise RequestError(
                    f"--rank: {part[:40]!r} is not a valid rank", hint="for example --rank 3 or --rank 0-3,8"
                )
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise RequestError(
                    f"--rank: the range {first}-{last} is backwards", hint=f"write --rank {last}-{first}"
                )
            if last >= _MOST:
                raise RequestError(f"--rank: rank {last} is too large", hint=f"use ranks below {_MOST}")
            found.update(range(first, last + 1))
    return frozenset(found)


def filter_run(
    start: Mapping[str, Any] | None, ranks: Collection[int], nodes: Collection[str], files: Iterable[Path]
) -> RankFilter:
    """Return the filter for the lines of these ranks on these nodes of a run; all lines if both are empty.

    ``start`` is that of ``rank_records.load_start``. The labels are tasks; if several ranks share a task, lines in the
    ``files`` may show their rank after the label. Raises RequestError if they do not.
    """
    if not ranks and not nodes:
        return None, None
    tasks = [entry["task"] for entry in start["ranks"]] if start is not None else []
    shared = len(set(tasks)) < len(tasks)
    if shared and ranks and any(_PREFIX.search(_read_ends(path)) for path in files):
        return _filter_by_prefix(ranks)
    return frozenset(select_tasks(start, ranks, nodes)), None


def filter_external(ranks: Collection[int], nodes: Collection[str], files: Iterable[Path]) -> RankFilter:
    """Return the filter for the lines of these ranks of an external job; all lines if there are none.

    Raises RequestError for nodes, and if the lines in the ``files`` do not show their rank.
    """
    if nodes:
        raise RequestError("--node works only for jobs submitted by clusterrun", hint="select ranks instead: --rank 0")
    if not ranks:
        return None, None
    read = [_read_ends(path) for path in files]
    if any(map(_LABEL.search, read)):
        return frozenset(ranks), None
    # after labels: torch writes this prefix before the lines of a traceback too
    if any(map(_PREFIX.search, read)):
        return _filter_by_prefix(ranks)
    raise RequestError(
        f"--rank {format_ranges(ranks)}: this log does not show which rank wrote each line",
        hint="run srun with --label to add the rank to each line, or use --grep RE",
    )


def _filter_by_prefix(ranks: Collection[int]) -> RankFilter:
    return None, re.compile(rf"^\[rank(?:{'|'.join(map(str, sorted(ranks)))})\]:")


def _read_ends(path: Path) -> bytes:
    """Return the bytes at both ends of a log, none if it cannot be read."""
    try:
        with closing(LogFile(path)) as file:
            size = file.size()
            return b"".join(file.blocks(0, _HEAD)) + b"\n" + b"".join(file.blocks(max(_HEAD, size - _HEAD), size))
    except OSError:
        return b""


def select_tasks(start: Mapping[str, Any] | None, ranks: Collection[int], nodes: Collection[str]) -> set[int]:
    """Return the srun tasks, which are the labels, of these ranks on these nodes. At least one must be given.

    With both, a rank must be on one of the nodes. Without ``start``, each rank is its own task, as srun starts one per
    GPU. Raises RequestError for a rank or node that the job does not have, and for a node without ``start``.
    """
    entries: list[dict[str, Any]] = start["ranks"] if start is not None else []
    if not entries and nodes:
        raise RequestError(
            "--node: the ranks have not started, so their nodes are not known yet",
            hint="try again once the ranks have started, or select ranks: --rank 0",
        )
    if not entries:
        return set(ranks)
    selected = _select_ranks(entries, ranks, nodes)
    tasks = {entry["task"] for entry in entries if entry["rank"] in selected}
    labelled = {entry["rank"] for entry in entries if entry["task"] in tasks}
    if labelled != selected:
        # a launcher with one task per node: all its ranks have the same label
        message = f"the log labels the lines from ranks {format_ranges(labelled)} only by node"
        raise RequestError(f"--rank {format_ranges(selected)}: {message}", hint="select a node instead: --node NAME")
    return tasks


def _select_ranks(entries: list[dict[str, Any]], ranks: Collection[int], nodes: Collection[str]) -> set[int]:
    """Return those of these ranks that are on these nodes. Raises RequestError if one does not exist or none is."""
    node_of = {entry["rank"]: entry["node"] for entry in entries}
    _require_known(node_of, ranks, nodes)
    on_nodes = {rank for rank, node in node_of.items() if not nodes or node in nodes}
    selected = on_nodes.intersection(ranks or on_nodes)
    if not selected:
        absent, on = format_ranges(ranks), ", ".join(nodes)
        what = f"rank {absent} is" if len(ranks) == 1 else f"ranks {absent} are"
        raise RequestError(f"{what} not on {on}", hint=f"ranks on {on}: {format_ranges(on_nodes)}")
    return selected


def _require_known(node_of: Mapping[int, str], ranks: Collection[int], nodes: Collection[str]) -> None:
    for node in nodes:
        if node not in node_of.values():
            available = ", ".join(sorted(set(node_of.values())))
            raise RequestError(f"the job has no node {node}", hint=f"available nodes: {available}")
    for rank in ranks:
        if rank not in node_of:
            raise RequestError(f"the job has no rank {rank}", hint=f"available ranks: {format_ranges(node_of)}")


def format_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ``0-3, 8``."""
    return format_tasks(numbers).replace(",", ", ")
