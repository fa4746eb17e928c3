"""Read logs as they are now: all lines, those since a time, or the last ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from clusterrun.logs.files import LogFile, NotTheJobs, Source, Stream, Tick, interleave, offsets_at
from clusterrun.logs.lines import LineReader, LogLine
from clusterrun.logs.request import LineFilter, LogRequest

BEFORE = 256 * 1024  # bytes read before an offset, as a long line may have begun in them
_COUNTED = 10_000  # more last lines than this are counted first and read again, instead of kept in memory

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


R = TypeVar("R", bound=Reader[Any])


def read_lines(source: Source, request: LogRequest) -> Iterator[LogLine]:
    """Yield the requested lines of a job's files as they are now; see ``read``."""
    return read(source, request, lambda stream: line_reader(stream, source, request.filter))


def line_reader(stream: Stream, source: Source, line_filter: LineFilter) -> LineReader:
    """Return a reader of the lines of one file that pass the filter."""
    return LineReader(stream, world_size=source.world_size, ranks=source.ranks, match=line_filter.match())


def read(source: Source, request: LogRequest, new_reader: Callable[[Stream], Reader[T]]) -> Iterator[T]:
    """Yield what new readers make of a job's files; with ``tail`` they must return one item per line.

    Without ticks, out comes before err, since no file says when a line was written; with ticks both are interleaved.
    ``tail`` counts the passing lines of both files if they are interleaved, else of each. ``since`` begins at the sizes
    in the last tick before it. A missing file has no lines, and one of another user is left out. Raises
    RequestError if a log is not a regular file.
    """
    tail = request.tail
    with ExitStack() as stack:
        files = _open(source, request, stack)
        # read up to the size of now: a job may write faster than this reads
        sizes = {stream: file.size() for stream, file in files.items()}
        both = sizes.get("out", 0), sizes.get("err", 0)
        starts = _starts(source, request, both)
        if tail is None:
            yield from _read_interleaved(files, source.ticks, both, starts, new_reader, skip_to)
        elif not source.ticks:
            for stream, file in files.items():
                new = partial(new_reader, stream)
                yield from last_lines(file, sizes[stream], tail, new, begin=starts[stream], finish=True)[0]
        else:  # the last lines of both are among the last lines of each
            if tail <= _COUNTED:
                for stream, file in files.items():
                    new = partial(new_reader, stream)
                    starts[stream] = last_lines(file, sizes[stream], tail, new, begin=starts[stream], finish=True)[2]
            yield from _last(lambda: _read_interleaved(files, source.ticks, both, starts, new_reader, feed_to), tail)


class Skip:
    """The number of lines still to be read before the first one that is shown."""

    def __init__(self, left: int = 0) -> None:
        self.left = left


class OldBytes(NamedTuple):
    """What a job's files contain when they begin to be followed.

    ``starts`` are the offsets of the first bytes to read, ``parts`` says in which order they are read, up to which
    offset each time: that of ``read``. ``skips`` counts the lines before the last ones.
    """

    starts: dict[Stream, int]
    parts: Sequence[tuple[Stream, int]]
    skips: dict[Stream, Skip]


def find_old(source: Source, request: LogRequest, new_reader: Callable[[Stream], Reader[Any]]) -> OldBytes:
    """Return what a job's files contain now; ``new_reader`` as for ``read`` with ``tail``."""
    tail = request.tail
    with ExitStack() as stack:
        files = _open(source, request, stack)
        sizes = {stream: file.size() for stream, file in files.items()}
        both = sizes.get("out", 0), sizes.get("err", 0)
        starts, skips = _starts(source, request, both), dict[Stream, Skip]()
        if tail is not None:
            for stream, file in files.items() if tail <= _COUNTED else ():
                new = partial(new_reader, stream)
                starts[stream] = last_lines(file, sizes[stream], tail, new, begin=starts[stream], finish=False)[2]
            skips = _count_before(files, source.ticks, both, starts, new_reader, tail)
    parts = interleave(source.ticks, both, (starts["out"], starts["err"]))
    return OldBytes(starts, [(_stream(which), end) for which, _, end in parts], skips)


def _count_before(
    files: dict[Stream, LogFile], ticks: Sequence[Tick], sizes: tuple[int, int], starts: dict[Stream, int],
    new_reader: Callable[[Stream], Reader[Any]], tail: int,
) -> dict[Stream, Skip]:  # fmt: skip
    """Return how many lines come before the last ``tail``: of both files together if ticks say in which order."""
    counts = dict.fromkeys(files, 0)
    for stream, file in files.items():
        reader = feed_to(file, starts[stream], new_reader(stream))
        end = sizes[stream == "err"]
        counts[stream] = sum(1 for _ in _lines(file, starts[stream], end, reader, finish=False))
    if ticks:
        return dict.fromkeys(files, Skip(max(0, sum(counts.values()) - tail)))
    return {stream: Skip(max(0, count - tail)) for stream, count in counts.items()}


def _open(source: Source, request: LogRequest, stack: ExitStack) -> dict[Stream, LogFile]:
    """Return the requested files that exist and may be read, open until the stack ends."""
    files: dict[Stream, LogFile] = {}
    for stream, _ in source.files(request.filter.stream):
        try:
            files[stream] = stack.enter_context(closing(source.open(stream)))
        except (FileNotFoundError, NotTheJobs):
            continue
    return files


def _starts(source: Source, request: LogRequest, sizes: tuple[int, int]) -> dict[Stream, int]:
    out, err = (0, 0) if request.since is None else offsets_at(source.ticks, sizes, request.since)
    return {"out": out, "err": err}


def _stream(which: int) -> Stream:
    return "err" if which else "out"


def last_lines(
    file: LogFile, end: int, tail: int, new_reader: Callable[[], R], *, begin: int = 0, finish: bool
) -> tuple[Iterable[Any], R, int]:
    """Return the last ``tail`` lines from ``begin`` to ``end``, their reader, which can read on, and its first offset.

    Reads backwards from the end, as far as necessary. With ``finish``, an unfinished line counts.
    """
    if tail > _COUNTED:
        total = sum(1 for _ in _lines(file, begin, end, feed_to(file, begin, new_reader()), finish=finish))
        reader = feed_to(file, begin, new_reader())
        return islice(_lines(file, begin, end, reader, finish=finish), max(0, total - tail), None), reader, begin
    span = 2 * BEFORE
    while True:
        start = max(begin, end - span)
        span *= 4
        if start > begin and b"\n" not in b"".join(file.blocks(max(0, start - BEFORE), start)):
            continue  # inside a very long line: its label is further back
        reader = feed_to(file, start, new_reader())
        kept = deque(_lines(file, start, end, reader, finish=finish), maxlen=tail)
        if len(kept) == tail or start == begin:
            return kept, reader, start


def skip_to(file: LogFile, at: int, reader: R) -> R:
    """Return the reader after it skipped the bytes before ``at``."""
    for block in file.blocks(max(0, at - BEFORE), at):
        reader.skip(block)
    return reader


def feed_to(file: LogFile, at: int, reader: R) -> R:
    """Return the reader after it read the bytes before ``at``, which may be inside a line or between its pieces."""
    for block in file.blocks(max(0, at - BEFORE), at):
        reader.feed(block)
    return reader


def _read_interleaved(
    files: dict[Stream, LogFile],
    ticks: Sequence[Tick],
    sizes: tuple[int, int],
    starts: dict[Stream, int],
    new_reader: Callable[[Stream], Reader[T]],
    begin: Callable[[LogFile, int, Reader[T]], Reader[T]],
) -> Iterator[T]:
    readers = {stream: begin(file, starts[stream], new_reader(stream)) for stream, file in files.items()}
    for which, start, end in interleave(ticks, sizes, (starts["out"], starts["err"])):
        stream = _stream(which)
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
