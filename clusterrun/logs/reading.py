"""Reading logs as they are now: all of them, from a time on, or their last lines."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from clusterrun.errors import ClusterrunError
from clusterrun.logs.files import LogFile, NotTheJobs
from clusterrun.logs.lines import LineReader, LogLine, Stream
from clusterrun.logs.merge import offsets_at, turns
from clusterrun.logs.wanted import LineFilter, Source, Streams, Tick

BEFORE = 256 * 1024  # bytes read before a place for what they leave unfinished there: a long line's pieces
_COUNTED = 10_000  # more last lines than this are counted first and read again instead of kept in memory

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Reader(Protocol[T_co]):
    """What turns the bytes of one file, in blocks of any size, into items: lines, or chunks of lines."""

    def feed(self, data: bytes) -> Sequence[T_co]:
        """What these bytes complete."""

    def skip(self, data: bytes) -> None:
        """Take what stands before the place where reading begins, perhaps inside a line: nothing of it is shown."""

    def late(self, now: float) -> Sequence[T_co]:
        """What should wait no longer; ``now`` in seconds of any clock."""

    def end(self) -> Sequence[T_co]:
        """What is still unfinished."""


R = TypeVar("R", bound=Reader[Any])


def read_lines(
    paths: tuple[Path, Path | None],
    *,
    stream: Streams = "both",
    ranks: Collection[int] | None = None,
    tail: int | None = None,
    grep: re.Pattern[str] | None = None,
    world_size: int | None = None,
    errors: bool = False,
    ticks: Sequence[Tick] = (),
    since: float | None = None,
) -> Iterator[LogLine]:
    """The lines of the logs that pass the filters, as the files are now.

    Those of out come first, then those of err, as nothing in the files says when a line was written; with ``ticks``
    they take turns. With ``tail``, the last that many passing lines: of both where they take turns, else of each.
    ``since`` (seconds since 1970) begins where the files ended at the last tick before it. A file that does not
    exist has no lines. Raises RequestError where a file is not a plain one.
    """
    chosen = None if ranks is None else frozenset(ranks)
    source = Source(*paths, world_size=world_size, ranks=chosen, ticks=tuple(ticks))
    want = LineFilter(stream, grep, errors)
    return read(source, want, lambda stream: line_reader(stream, source, want), tail=tail, since=since)


def refused(source: Source, want: LineFilter) -> list[NotTheJobs]:
    """Why files that are there are not read: they belong to somebody whose job it is not."""
    found: list[NotTheJobs] = []
    for stream, _ in source.files(want.stream):
        try:
            source.open(stream).close()
        except NotTheJobs as error:
            found.append(error)
        except (OSError, ClusterrunError):
            continue
    return found


def line_reader(stream: Stream, source: Source, want: LineFilter) -> LineReader:
    """What reads the lines of one file that are wanted."""
    return LineReader(stream, world_size=source.world_size, ranks=source.ranks, match=want.match())


def read(
    source: Source,
    want: LineFilter,
    new_reader: Callable[[Stream], Reader[T]],
    *,
    tail: int | None = None,
    since: float | None = None,
) -> Iterator[T]:
    """What new readers make of a job's files; with ``tail`` they must give an item a line.

    A file that ``refused`` names is left out.
    """
    with ExitStack() as stack:
        files: dict[Stream, LogFile] = {}
        for stream, _ in source.files(want.stream):
            try:
                files[stream] = stack.enter_context(closing(source.open(stream)))
            except (FileNotFoundError, NotTheJobs):
                continue
        # a file that is still written to must not keep us for ever
        sizes = {stream: file.size() for stream, file in files.items()}
        both = sizes.get("out", 0), sizes.get("err", 0)
        out, err = (0, 0) if since is None else offsets_at(source.ticks, both, since)
        starts: dict[Stream, int] = {"out": out, "err": err}
        if tail is None:
            yield from _in_turns(files, source.ticks, both, starts, new_reader, begun_at)
        elif not source.ticks:
            for stream, file in files.items():
                one = _making(new_reader, stream)
                yield from last_lines(file, sizes[stream], tail, one, begin=starts[stream], finish=True)[0]
        else:  # what is last of both is among what is last of each
            if tail <= _COUNTED:
                for stream, file in files.items():
                    one = _making(new_reader, stream)
                    last = last_lines(file, sizes[stream], tail, one, begin=starts[stream], finish=True)
                    starts[stream] = last[2]
            yield from _last(lambda: _in_turns(files, source.ticks, both, starts, new_reader, primed), tail)


def last_lines(
    file: LogFile, end: int, tail: int, new_reader: Callable[[], R], *, begin: int = 0, finish: bool
) -> tuple[Iterable[Any], R, int]:
    """The last ``tail`` lines from ``begin`` to ``end``; the reader, which can go on after them; where it began.

    Reads backwards from the end, as far as it must. With ``finish`` an unfinished line counts as one.
    """
    if tail > _COUNTED:
        total = sum(1 for _ in _lines(file, begin, end, primed(file, begin, new_reader()), finish=finish))
        reader = primed(file, begin, new_reader())
        return islice(_lines(file, begin, end, reader, finish=finish), max(0, total - tail), None), reader, begin
    span = 2 * BEFORE
    while True:
        start = max(begin, end - span)
        span *= 4
        if start > begin and b"\n" not in b"".join(file.blocks(max(0, start - BEFORE), start)):
            continue  # inside one very long line: its label is further back
        reader = primed(file, start, new_reader())
        kept = deque(_lines(file, start, end, reader, finish=finish), maxlen=tail)
        if len(kept) == tail or start == begin:
            return kept, reader, start


def begun_at(file: LogFile, at: int, reader: R) -> R:
    """The reader, told what comes before ``at``, of which nothing is to be shown."""
    for block in file.blocks(max(0, at - BEFORE), at):
        reader.skip(block)
    return reader


def primed(file: LogFile, at: int, reader: R) -> R:
    """The reader, told what comes before ``at``: that may be inside a line, perhaps between the pieces of several."""
    for block in file.blocks(max(0, at - BEFORE), at):
        reader.feed(block)
    return reader


def _in_turns(
    files: dict[Stream, LogFile],
    ticks: Sequence[Tick],
    sizes: tuple[int, int],
    starts: dict[Stream, int],
    new_reader: Callable[[Stream], Reader[T]],
    begin: Callable[[LogFile, int, Reader[T]], Reader[T]],
) -> Iterator[T]:
    readers = {stream: begin(file, starts[stream], new_reader(stream)) for stream, file in files.items()}
    for which, start, end in turns(ticks, sizes, (starts["out"], starts["err"])):
        stream: Stream = "err" if which else "out"
        for block in files[stream].blocks(start, end):
            yield from readers[stream].feed(block)
    for reader in readers.values():
        yield from reader.end()


def _lines(file: LogFile, start: int, end: int, reader: Reader[T], *, finish: bool) -> Iterator[T]:
    for block in file.blocks(start, end):
        yield from reader.feed(block)
    if finish:
        yield from reader.end()


def _last(read_all: Callable[[], Iterator[T]], tail: int) -> Iterable[T]:
    if tail <= _COUNTED:
        return deque(read_all(), maxlen=tail)
    total = sum(1 for _ in read_all())
    return islice(read_all(), max(0, total - tail), None)


def _making(new_reader: Callable[[Stream], Reader[T]], stream: Stream) -> Callable[[], Reader[T]]:
    return lambda: new_reader(stream)
