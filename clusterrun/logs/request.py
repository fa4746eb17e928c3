"""What the user asks of a job's logs: one row of ``FLAGS`` for each flag of ``logs``, parsed into a ``LogRequest``.

A flag that selects lines is added here alone: a row of ``FLAGS``, a field of ``LineFilter`` that ``match`` reads, and a
line of ``parse_request``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from clusterrun.logs.complaints import ErrorMatcher
from clusterrun.logs.display import DisplayFormat, detect_format
from clusterrun.logs.files import LogFile
from clusterrun.logs.lines import Match, Stream
from clusterrun.logs.select import compile_grep, parse_ranks
from clusterrun.terminal.units import parse_since

Streams = Literal["out", "err", "both"]


@dataclass(frozen=True)
class Flag:
    """A flag of ``logs``: a switch without ``metavar`` and ``choices``, else an option that takes a value."""

    names: tuple[str, ...]
    help: str
    metavar: str = ""
    least: int | None = None
    """The smallest value; the value is a whole number then."""
    repeated: bool = False
    choices: tuple[str, ...] = ()
    """The allowed values; the last is the default."""

    @property
    def key(self) -> str:
        """The name of its value for ``parse_request``."""
        return self.names[-1].lstrip("-").replace("-", "_")


FLAGS = (
    Flag(("-f", "--follow"), "Follow until the job ends; exit with its outcome."),
    Flag(("-n", "--lines"), "Only the last N lines.", "N", least=0),
    Flag(("--rank",), "Only these ranks: 3, 0-7 or 0-3,8; may be repeated.", "R", repeated=True),
    Flag(("--node",), "Only the ranks on this node; may be repeated.", "NAME", repeated=True),
    Flag(("--stream",), "Which stream.", choices=("out", "err", "both")),
    Flag(("--grep",), "Only lines that match.", "RE"),
    Flag(("--exclude",), "Leave out lines that match.", "RE"),
    Flag(("--errors",), "Only errors, with whole tracebacks."),
    Flag(("--since",), "Only lines written since: 10m, 2h, 1d, 14:05 or a date.", "WHEN"),
    Flag(("--no-fold",), "On a terminal, do not collapse lines that many ranks print alike."),
    Flag(("--raw",), "Print the bytes unchanged, escape sequences included."),
)


class Tick(NamedTuple):
    """The sizes of a job's log files at one time: seconds since 1970, bytes of out, bytes of err."""

    time: float
    out: int
    err: int


class Notice(NamedTuple):
    """A message of clusterrun about a followed file."""

    text: str
    stream: Stream = "out"


@dataclass(frozen=True)
class Source:
    """The log files of one job, or of one task of an array.

    Without ``err``, the job writes both streams into ``out``. ``name`` is printed before each line. ``ranks`` are
    srun's labels, None for all lines. ``ticks`` are sorted by time. ``begin`` holds the offset of the job's first byte
    in each file: an earlier job with the same id wrote what is before it. ``owners`` are the uids that may own the
    files, None for any.
    """

    out: Path
    err: Path | None = None
    name: str = ""
    world_size: int | None = None
    ranks: frozenset[int] | None = None
    ticks: tuple[Tick, ...] = ()
    begin: tuple[int, int] = (0, 0)
    owners: frozenset[int] | None = None

    def files(self, stream: Streams) -> list[tuple[Stream, Path]]:
        """Return the files of the requested streams, out first."""
        found: list[tuple[Stream, Path]] = []
        if stream != "err":
            found.append(("out", self.out))
        if stream != "out" and self.err is not None:
            found.append(("err", self.err))
        return found

    def open(self, stream: Stream) -> LogFile:
        """Open the log of a stream. Raises what LogFile raises."""
        path = self.out if stream == "out" else self.err
        assert path is not None
        return LogFile(path, self.begin[stream == "err"], self.owners)


@dataclass(frozen=True)
class LineFilter:
    """Which lines to show."""

    stream: Streams = "both"
    grep: re.Pattern[str] | None = None
    errors: bool = False
    exclude: re.Pattern[str] | None = None

    @property
    def takes_blocks(self) -> bool:
        """Whether the reader for pipes can apply this filter to a whole block; another field needs ``match``."""
        return self == LineFilter(self.stream, self.grep, self.errors)

    def match(self) -> Match:
        """Return a new predicate for one pass over one file, or None if all lines pass.

        It must see every line in order, as the lines of a traceback are recognised by those before them.
        """
        grep, exclude = self.grep, self.exclude
        by_grep: Match = None if grep is None else lambda line: grep.search(line.text) is not None
        matches = ErrorMatcher(grep) if self.errors else by_grep
        if exclude is None:
            return matches
        return lambda line: (matches is None or matches(line)) and exclude.search(line.text) is None


@dataclass(frozen=True)
class LogRequest:
    """Which lines of a job's logs to show, from where on, and how. ``since`` is in seconds since 1970."""

    filter: LineFilter = LineFilter()
    display: DisplayFormat = field(default_factory=DisplayFormat)
    tail: int | None = None
    since: float | None = None
    ranks: frozenset[int] = frozenset()
    nodes: tuple[str, ...] = ()
    follow: bool = False


def parse_request(flags: Mapping[str, Any], *, now: float, tty: bool, environ: Mapping[str, str]) -> LogRequest:
    """Parse the values of ``FLAGS``, by key. Raises RequestError."""
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
        follow=flags["follow"],
    )
