"""Turn the logs of jobs into bytes ready to print: for people on a terminal, for programs in a pipe.

On a terminal, the same line of many ranks is folded into one line with its ranks. A line waits for the same line of
other ranks: for a fraction of a second while a log is followed, else for a number of lines. Lines are returned in the
order of their first rank. A rank joins no line that is before one of its own waiting lines, so the lines of each rank
keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from clusterrun.logs.files import LogFile, Source, Stream
from clusterrun.logs.follow import FollowedFile, Notice, Timing, follow_files
from clusterrun.logs.frames import FramedFile
from clusterrun.logs.lines import LineReader, LogLine
from clusterrun.logs.pipe import PipeReader, RawReader, pipe_line
from clusterrun.logs.reading import OldBytes, Reader, Skip, feed_to, find_old, line_reader, read, read_lines, skip_to
from clusterrun.logs.request import LogRequest, format_ranges
from clusterrun.terminal.safe_text import safe_text

_BATCH = 256  # lines joined into one chunk
_COLOURS = ("36", "32", "33", "35", "34")  # readable on light and dark; red is for err
_ERR, _FAINT = "31", "2"
_RANGES_SHOWN = 8  # ranges of ranks printed after a folded line
HOLD = 0.15
"""The longest wait of a line in seconds, while a log is followed."""
_NEAR = 32
"""The longest wait of a line, in lines of each rank, else."""
_WAITING = 4096  # the most lines that wait ...
_WAITING_SIZE = 1024 * 1024  # ... and the most characters in them


def show(sources: Sequence[Source], request: LogRequest) -> Iterator[bytes]:
    """Yield the logs of jobs, one after the other, as they are now."""
    for source in sources:
        printer = Printer(source, request)
        if request.tail is None or request.display.raw:
            yield from read(source, request, partial(printer.reader, by_line=request.tail is not None))
        else:
            yield from printer.format(read_lines(source, request))
        yield from printer.end()


def show_following(
    sources: Sequence[Source], request: LogRequest, *, stop: Callable[[], bool], timing: Timing | None = None
) -> Iterator[bytes | Notice]:
    """Yield the logs of jobs as they grow, until ``stop()``; see ``follow_files``.

    What exists already comes first, in the order of ``show``.
    """
    timing = timing or Timing()
    printers = [Printer(source, request, timing.now) for source in sources]
    files: list[FollowedFile[bytes]] = []
    first: list[tuple[FollowedFile[bytes], int]] = []
    for printer in printers:
        followed, parts = printer.followed_files()
        files += followed.values()
        first += [(followed[stream], end) for stream, end in parts]
    yield from follow_files(files, stop=stop, timing=timing, first=first)
    for printer in printers:
        yield from printer.end()


class Printer:
    """Formats the lines of one job's files; with ``now``, a line waits by time for the same line of other ranks."""

    def __init__(self, source: Source, request: LogRequest, now: Callable[[], float] | None = None) -> None:
        self._source, self._request, self._display, self._now = source, request, request.display, now
        self._name = f"{source.name} " if source.name else ""
        self._width = len(str(source.world_size - 1)) if source.world_size else 1
        shown = source.world_size if source.ranks is None else len(source.ranks)
        self._world = shown or 0
        self._folder = LineFolder(shown) if self._display.fold and not self._display.raw else None

    def reader(self, stream: Stream, by_line: bool = False, lines: LineReader | None = None) -> Reader[bytes]:
        """Return a reader that turns a file's bytes into chunks to print; it continues ``lines`` if given."""
        if self._display.raw:
            return RawReader(stream, self._source, self._request.filter, by_line=by_line)
        lines = lines or line_reader(stream, self._source, self._request.filter)
        if self._display.terminal:
            return _TerminalReader(lines, self)
        return PipeReader(stream, self._source, self._request.filter, lines)

    def followed_files(self) -> tuple[dict[Stream, FollowedFile[bytes]], Sequence[tuple[Stream, int]]]:
        """Return the files to follow, from their start, their last lines or a time, and how to read what exists."""
        request, found = self._request, dict[Stream, FollowedFile[bytes]]()
        resume = request.resume
        if resume is not None and resume.job:  # the last lines, or those since a time, were shown before
            request = replace(request, tail=None, since=None)
        old = find_old(self._source, request, partial(self._line_reader, by_line=True))
        for stream, _ in self._source.files(request.filter.stream):
            new_reader, begin = partial(self.reader, stream), partial(self._begin, stream, old)
            found[stream] = (
                FollowedFile(self._source, stream, new_reader, begin)
                if resume is None
                else FramedFile(
                    self._source, stream, new_reader, begin,
                    resume=resume, context=partial(self._read_before, stream), flush=self.end,
                )
            )  # fmt: skip
        return found, old.parts

    def format(self, lines: Iterable[LogLine]) -> Iterator[bytes]:
        """Yield lines as chunks of bytes."""
        batch: list[bytes] = []
        for line in self._format_each(lines):
            batch.append(line)
            if len(batch) == _BATCH:
                yield b"".join(batch)
                batch.clear()
        if batch:
            yield b"".join(batch)

    def late(self, now: float) -> list[bytes]:
        """Return the lines that have waited long enough for the same line of other ranks."""
        return [] if self._folder is None else self._join_folded(self._folder.late(now))

    def end(self) -> list[bytes]:
        """Return all waiting lines."""
        return [] if self._folder is None else self._join_folded(self._folder.end())

    def _format_each(self, lines: Iterable[LogLine]) -> Iterator[bytes]:
        if self._folder is not None:
            now = None if self._now is None else self._now()
            for folded in self._folder.add(lines, now):
                yield self._format_folded(folded)
        elif self._display.terminal:
            for line in lines:
                text = format_line(line, self._width, colour=self._display.colour)
                yield f"{self._name}{text}\n".encode()
        else:
            for line in lines:
                yield self._name.encode() + pipe_line(line) + b"\n"

    def _join_folded(self, lines: Iterable[FoldedLine]) -> list[bytes]:
        joined = b"".join(map(self._format_folded, lines))
        return [joined] if joined else []

    def _format_folded(self, folded: FoldedLine) -> bytes:
        text = format_line(folded.line, self._width, colour=self._display.colour, ranks=folded.ranks, world=self._world)
        return f"{self._name}{text}\n".encode()

    def _line_reader(self, stream: Stream, by_line: bool = False) -> Reader[Any]:
        """Return a reader that reads before what is shown: of lines, or of raw bytes."""
        if self._display.raw:
            return self.reader(stream, by_line)
        return line_reader(stream, self._source, self._request.filter)

    def _continued(self, stream: Stream, reader: Reader[Any]) -> Reader[bytes]:
        """Return a reader that turns bytes into chunks to print, after the bytes that ``_line_reader`` has read."""
        return self.reader(stream, lines=reader) if isinstance(reader, LineReader) else reader

    def _read_before(self, stream: Stream, file: LogFile, at: int) -> Reader[bytes]:
        """Return a reader that has read the bytes before an offset, all lines of which are printed."""
        return self._continued(stream, feed_to(file, at, self._line_reader(stream)))

    def _begin(self, stream: Stream, old: OldBytes, file: LogFile, size: int) -> tuple[int, list[bytes], Reader[bytes]]:
        """For ``FollowedFile``: return the offset of the first byte to read, no items, and the reader from there."""
        at, skip = old.starts[stream], old.skips.get(stream)
        if skip is None:
            return at, [], skip_to(file, at, self.reader(stream))
        lines = feed_to(file, at, self._line_reader(stream, by_line=True))
        return at, [], _TailReader(lines, skip, self._show_lines, self._continued(stream, lines))

    def _show_lines(self, lines: Sequence[Any]) -> list[bytes]:
        return list(lines if self._display.raw else self.format(lines))


class _TailReader:
    """Reads lines until the last ones begin, which it shows, and then as ``shown``, which continues ``lines``."""

    def __init__(
        self, lines: Reader[Any], skip: Skip, show: Callable[[Sequence[Any]], list[bytes]], shown: Reader[bytes]
    ) -> None:
        self._lines, self._skip, self._show, self._shown = lines, skip, show, shown

    def feed(self, data: bytes) -> Sequence[bytes]:
        if not self._skip.left:
            return self._shown.feed(data)
        lines = self._lines.feed(data)
        last = lines[self._skip.left :]
        self._skip.left -= len(lines) - len(last)
        return self._show(last)

    def skip(self, data: bytes) -> None:
        self._shown.skip(data)

    def late(self, now: float) -> Sequence[bytes]:
        self._skip.left = 0  # all that existed has been read, or was truncated
        return self._shown.late(now)

    def end(self) -> Sequence[bytes]:
        return self._shown.end()


class _TerminalReader:
    """Reads lines and formats them for a terminal."""

    def __init__(self, lines: LineReader, printer: Printer) -> None:
        self._lines, self._printer = lines, printer

    def feed(self, data: bytes) -> list[bytes]:
        return list(self._printer.format(self._lines.feed(data)))

    def skip(self, data: bytes) -> None:
        self._lines.skip(data)

    def late(self, now: float) -> list[bytes]:
        return [*self._printer.format(self._lines.late(now)), *self._printer.late(now)]

    def end(self) -> list[bytes]:
        return list(self._printer.format(self._lines.end()))


def format_line(line: LogLine, width: int, *, colour: bool = False, ranks: Iterable[int] = (), world: int = 0) -> str:
    """Return a line for a terminal, without newline: ``RANK| text``, or ``RANK! text`` of err.

    ``width`` is the number of digits of the largest rank. With several ``ranks``, they are printed after the text.
    ``world`` is the number of ranks, 0 if unknown.
    """
    rank = line.rank
    field, mark = f"{'' if rank is None else rank:>{width}}", "!" if line.stream == "err" else "|"
    writers = list(ranks)
    after = f" [{line.cut} bytes left out]" if line.cut else ""
    if len(writers) > 1:
        ranges = format_ranges(writers).split(", ")
        shown = ", ".join(ranges if len(ranges) <= _RANGES_SHOWN else [*ranges[:_RANGES_SHOWN], "…"])
        after += f"  (×{len(writers)} ranks{'' if len(writers) == world else f': {shown}'})"
    if colour:
        field = _paint(field, _COLOURS[rank % len(_COLOURS)]) if rank is not None else field
        mark = _paint(mark, _ERR) if line.stream == "err" else mark
        after = _paint(after, _FAINT) if after else after
    return f"{field}{mark} {safe_text(line.text)}{after}"


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


@dataclass
class FoldedLine:
    """A line, and the ranks that wrote it, in the order of writing."""

    line: LogLine
    ranks: list[int]
    at: float = 0.0
    serial: int = 0
    rank_set: set[int] = field(default_factory=set)


class LineFolder:
    """Folds lines in the order in which they are read. A line with ``world`` ranks is complete.

    ``now`` is in seconds; without it, ``add`` measures waiting in lines.
    """

    def __init__(self, world: int | None = None) -> None:
        self._world = world
        self._waiting: deque[FoldedLine] = deque()
        self._by_text: dict[tuple[str, str], FoldedLine] = {}  # the last waiting line with this stream and text
        self._last: dict[int, int] = {}  # rank -> serial of its last line, which may still wait
        self._size = 0
        self._count = 0  # lines added
        self._serial = 0  # lines that have waited, in all

    def add(self, lines: Iterable[LogLine], now: float | None = None) -> Iterator[FoldedLine]:
        """Add lines; yield those that need not wait any longer."""
        for line in lines:
            rank = line.rank
            if rank is None or line.cut:  # not folded: they show what happened, in order
                yield from self.end()
                yield FoldedLine(line, [])
                continue
            self._count += 1
            key = line.stream, line.text
            same = self._by_text.get(key)
            if same is not None and rank not in same.rank_set and self._last.get(rank, -1) < same.serial:
                same.ranks.append(rank)
                same.rank_set.add(rank)
                self._last[rank] = same.serial
            else:
                self._serial += 1
                new = FoldedLine(line, [rank], self._count if now is None else now, self._serial, {rank})
                self._waiting.append(new)
                self._by_text[key] = new
                self._last[rank] = self._serial
                self._size += len(line.text)
            yield from self._due(self._count if now is None else now, HOLD if now is not None else None)

    def late(self, now: float) -> Iterator[FoldedLine]:
        """Yield the lines that have waited long enough."""
        return self._due(now, HOLD)

    def end(self) -> Iterator[FoldedLine]:
        """Yield all waiting lines."""
        while self._waiting:
            yield self._pop()

    def _due(self, now: float, hold: float | None) -> Iterator[FoldedLine]:
        if hold is None:
            hold = _NEAR * max(len(self._last), 1)
        while self._waiting:
            first = self._waiting[0]
            if (
                now - first.at < hold
                and len(first.ranks) != self._world
                and len(self._waiting) <= _WAITING
                and self._size <= _WAITING_SIZE
            ):
                return
            yield self._pop()

    def _pop(self) -> FoldedLine:
        first = self._waiting.popleft()
        key = first.line.stream, first.line.text
        if self._by_text.get(key) is first:
            del self._by_text[key]
        self._size -= len(first.line.text)
        if not self._waiting and len(self._last) > 65_536:
            self._last.clear()
        return first
