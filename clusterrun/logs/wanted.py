"""What is asked of the logs, as values: whose files, which lines of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from clusterrun.logs.complaints import Complaints
from clusterrun.logs.files import LogFile
from clusterrun.logs.lines import Match, Stream

Streams = Literal["out", "err", "both"]


class Tick(NamedTuple):
    """How long the files of a job were at a time: seconds since 1970, bytes."""

    time: float
    out: int
    err: int


class Notice(NamedTuple):
    """Something to say about a file that is followed; ours, not the job's."""

    text: str
    stream: Stream = "out"


@dataclass(frozen=True)
class Source:
    """One job's log files; a task of an array is a source of its own.

    Without ``err`` the job writes both streams into ``out``. ``name`` stands before each line where several
    sources are shown together. ``ranks`` are srun's labels, None for all lines. ``ticks`` come oldest first.
    ``begin`` is the offset of the job's first byte in each file: before it stands what another job of that id wrote.
    ``owners`` are the uids whose files may be the job's logs, None for any.
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
        """The files of the streams asked for, out first."""
        found: list[tuple[Stream, Path]] = []
        if stream != "err":
            found.append(("out", self.out))
        if stream != "out" and self.err is not None:
            found.append(("err", self.err))
        return found

    def open(self, stream: Stream) -> LogFile:
        """Open the log of a stream; raises what LogFile raises."""
        path = self.out if stream == "out" else self.err
        assert path is not None
        return LogFile(path, self.begin[stream == "err"], self.owners)


@dataclass(frozen=True)
class LineFilter:
    """Which lines: of which stream, holding a pattern, looking like an error."""

    stream: Streams = "both"
    grep: re.Pattern[str] | None = None
    errors: bool = False

    def match(self) -> Match:
        """A new predicate for one reading of one file; lines of a traceback are known by those before them."""
        grep = self.grep
        if not self.errors:
            return None if grep is None else lambda line: grep.search(line.text) is not None
        return Complaints(grep)
