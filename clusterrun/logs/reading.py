"""Read logs as they are now: all lines, those since a time, or the last ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, Protocol, TypeVar

from clusterrun.logs.files import LogFile, NotTheJobs, Source, Stream, interleave, offsets_at
from clusterrun.logs.labels import LogLine
from clusterrun.logs.lines import LineReader
from clusterrun.logs.request import LineFilter, LogRequest

BEFORE = 256 * 1024  # bytes read before an offset, as a long line may have begun in them

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Reader(Protocol[T_co]):
    """Turns the bytes of one file, in blocks of any size, into items: lines, or chunks of lines."""

    def feed(self, data: bytes) -> Sequence[T_co]:
        """Return the items that these bytes complete."""

    def skip(self, data: bytes) -> None:
        """Take bytes before the offset where reading begins, maybe inside a line. None of their lines is shown."""

    def late(self, now: float) -> Sequence[T_co]:
        """Return the items that have waited long enough; ``now`` in seconds of any clock."""

    def end(self) -> Sequence[T_co]:
        """Return the unfinished items."""


class Skip:
    """Skips a number of lines at the beginning; ``left`` is how many it still skips."""

    def __init__(self, left: int = 0) -> None:
        self.left = left

    def drop(self, lines: Sequence[T]) -> Sequence[T]:
        """Return the lines to show of those that were read next."""
        shown = lines[self.left :]
        self.left -= len(lines) - len(shown)
        return shown


OldBytes = tuple[dict[Stream, int], Sequence[tuple[Stream, int, int]], dict[Stream, Skip]]
"""What of a job's files at one moment is shown: the offsets of the first bytes to read; the parts as (stream, from, to)
in bytes, in the order of reading; and the lines to skip, of both files together if they are interleaved."""


def read_lines(source: Source, request: LogRequest) -> Iterator[LogLine]:
    """Yield the requested lines of a job's files as they are now; see ``read``."""
    return read(source, request, lambda stream: line_reader(stream, source, request.filter))


def line_reader(stream: Stream, source: Source, line_filter: LineFilter) -> LineReader:
    """Return a reader of the lines of one file that pass the filter."""
    filters = line_filter.filters(source.world_size)
    return LineReader(stream, world_size=source.world_size, ranks=source.ranks, filters=filters)


def read(source: Source, request: LogRequest, new_reader: Callable[[Stream], Reader[T]]) -> Iterator[T]:
    """Yield what new readers make of a job's files; with ``tail`` they must return one item per line.

    Without ticks, out comes before err, since no file says when a line was written; with ticks both are interleaved.
    ``tail`` counts the passing lines of both files if they are interleaved, else of each. ``since`` begins at the sizes
    in the last tick before it. A missing file has no lines, and one of another user is left out. Raises
    RequestError if a log is not a regular file.
    """
    with ExitStack() as stack:
        files = _open(source, request, stack)
        starts, parts, skips = _find_old(files, source, request, new_reader, finish=True)
        readers = {stream: new_reader(stream) for stream in files}
        for stream, file in files.items():
            reader = readers[stream]
            read_before(file, starts[stream], reader.skip if request.tail is None else reader.feed)
        for stream, start, end in parts:
            for block in files[stream].blocks(start, end):
                yield from skips[stream].drop(readers[stream].feed(block))
        for stream, reader in readers.items():
            yield from skips[stream].drop(reader.end())


def find_old(source: Source, request: LogRequest, new_reader: Callable[[Stream], Reader[Any]]) -> OldBytes:
    """Return what a job's files contain when they begin to be followed; ``new_reader`` as for ``read``."""
    with ExitStack() as stack:
        return _find_old(_open(source, request, stack), source, request, new_reader, finish=False)


def read_before(file: LogFile, at: int, take: Callable[[bytes], object]) -> None:
    """Give a reader the bytes before ``at``, which may be inside a line or between its pieces."""
    for block in file.blocks(max(0, at - BEFORE), at):
        take(block)


def _open(source: Source, request: LogRequest, stack: ExitStack) -> dict[Stream, LogFile]:
    """Return the requested files that exist and may be read, open until the stack ends."""
    files: dict[Stream, LogFile] = {}
    for stream, _ in source.files(request.filter.stream):
        try:
            files[stream] = stack.enter_context(closing(source.open(stream)))
        except (FileNotFoundError, NotTheJobs):
            continue
    return files


def _find_old(
    files: dict[Stream, LogFile], source: Source, request: LogRequest,
    new_reader: Callable[[Stream], Reader[Any]], *, finish: bool,
) -> OldBytes:  # fmt: skip
    # read up to the size of now: a job may write faster than this reads
    sizes: dict[Stream, int] = {"out": 0, "err": 0}
    sizes |= {stream: file.size() for stream, file in files.items()}
    starts: dict[Stream, int] = {"out": 0, "err": 0}
    if request.since is not None:
        starts = offsets_at(source.ticks, sizes, request.since)
    skips: dict[Stream, Skip] = {"out": Skip(), "err": Skip()}
    if request.tail is not None:
        counts: dict[Stream, int] = {}
        for stream, file in files.items():
            new = partial(new_reader, stream)
            starts[stream], counts[stream] = find_last(
                file, starts[stream], sizes[stream], request.tail, new, finish=finish
            )
        if source.ticks:  # the last lines of both are among the last lines of each
            skips = dict.fromkeys(skips, Skip(max(0, sum(counts.values()) - request.tail)))
        else:
            skips |= {stream: Skip(max(0, count - request.tail)) for stream, count in counts.items()}
    return starts, interleave(source.ticks, sizes, starts), skips


def find_last(
    file: LogFile, begin: int, end: int, tail: int, new_reader: Callable[[], Reader[Any]], *, finish: bool
) -> tuple[int, int]:
    """Return an offset and the number of lines from there to ``end``: at least ``tail``, or all from ``begin`` on.

    Reads backwards from the end, as far as necessary. With ``finish``, an unfinished line counts.
    """
    span = 2 * BEFORE
    while True:
        start = max(begin, end - span)
        span *= 4
        if start > begin and b"\n" not in b"".join(file.blocks(max(0, start - BEFORE), start)):
            continue  # inside a very long line: its label is further back
        reader = new_reader()
        read_before(file, start, reader.feed)
        count = sum(len(reader.feed(block)) for block in file.blocks(start, end))
        count += len(reader.end()) if finish else 0
        if count >= tail or start == begin:
            return start, count
