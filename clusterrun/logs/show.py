"""Turn the logs of jobs into bytes ready to print: for people on a terminal, for programs in a pipe.

A terminal gets text in which nothing acts on it. A pipe gets the log's own bytes, as from ``cat``, if the log is the
user's own and the reader on this machine (ADR 13).

On a terminal, the same line of many ranks is folded into one line with its ranks. A line waits for the same line of
other ranks: for a fraction of a second while a log is followed, else for a number of lines. Lines are returned in the
order of their first rank. A rank joins no line that is before one of its own waiting lines, so the lines of each rank
keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from clusterrun.logs.files import BLOCK, LogFile, Source, Stream
from clusterrun.logs.follow import FollowedFile, Notice, Timing, follow_files
from clusterrun.logs.frames import FramedFile
from clusterrun.logs.labels import Labels, LogLine
from clusterrun.logs.lines import Chunk, LineReader, RawReader
from clusterrun.logs.reading import Skip, find_old, line_reader, read, read_before
from clusterrun.logs.request import LogRequest, format_ranges
from clusterrun.terminal.safe_text import safe_text

_COLOURS = ("36", "32", "33", "35", "34")  # readable on light and dark; red is for err
_ERR, _FAINT = "31", "2"
_RANGES_SHOWN = 8  # ranges of ranks printed after a folded line
HOLD = 0.15
"""The longest wait of a line in seconds, while a log is followed."""
_NEAR = 32
"""The longest wait of a line, in lines of each rank, else."""
LiveBars = dict[tuple[str, Stream], list[str]]
"""The lines of the bars that are drawn at this moment, by job and stream; another thread may read them."""
_WAITING = 4096  # the most lines that wait ...
_WAITING_SIZE = 1024 * 1024  # ... and the most bytes in them


def show(sources: Sequence[Source], request: LogRequest) -> Iterator[bytes]:
    """Yield the logs of jobs, one after the other, as they are now."""
    for source in sources:
        printer = Printer(source, request)
        if request.tail is None:
            yield from read(source, request, printer.reader)
        else:
            yield from printer.format(read(source, request, printer.line_reader))
        yield from printer.end()


def show_following(
    sources: Sequence[Source], request: LogRequest, *, stop: Callable[[], bool], timing: Timing | None = None,
    bars: LiveBars | None = None,
) -> Iterator[bytes | Notice]:  # fmt: skip
    """Yield the logs of jobs as they grow, until ``stop()``; see ``follow_files``.

    What exists already comes first, in the order of ``show``. With ``bars``, a progress bar is kept there while it is
    drawn, and yielded when it is done; without, one of its states is yielded now and then.
    """
    timing = timing or Timing()
    printers = [Printer(source, request, timing.now, bars) for source in sources]
    files: list[FollowedFile[bytes]] = []
    first: list[tuple[FollowedFile[bytes], int]] = []
    for printer in printers:
        followed, parts = printer.followed_files()
        files += followed.values()
        first += [(followed[stream], end) for stream, _, end in parts]
    yield from follow_files(files, stop=stop, timing=timing, first=first)
    for printer in printers:
        yield from printer.end()


class Printer:
    """Formats the lines of one job's files; with ``now``, a line waits by time for the same line of other ranks."""

    def __init__(
        self, source: Source, request: LogRequest, now: Callable[[], float] | None = None, bars: LiveBars | None = None
    ) -> None:
        self._source, self._request, self._now, self.bars = source, request, now, bars
        self.display = request.display
        self._labels = Labels(source.world_size)
        self._escapes = request.display.escape or not source.is_own
        self._name = f"{source.name} ".encode() if source.name else b""
        self._width = len(str(source.world_size - 1)) if source.world_size else 1
        shown = source.world_size if source.ranks is None else len(source.ranks)
        self._world = shown or 0
        self._folder = LineFolder(shown) if self.display.fold and not self.display.raw else None

    def reader(self, stream: Stream) -> PrintedReader:
        """Return a reader that turns a file's bytes into chunks to print."""
        return PrintedReader(self.line_reader(stream), stream, self)

    def line_reader(self, stream: Stream) -> LineReader | RawReader:
        """Return a reader of the lines to print."""
        source, line_filter = self._source, self._request.filter
        if self.display.raw:
            filters = line_filter.filters(source.world_size)
            return RawReader(world_size=source.world_size, ranks=source.ranks, filters=filters)
        return line_reader(stream, source, line_filter)

    def followed_files(self) -> tuple[dict[Stream, FollowedFile[bytes]], Sequence[tuple[Stream, int, int]]]:
        """Return the files to follow, and the parts of them that exist, in the order in which to read them."""
        request, followed = self._request, dict[Stream, FollowedFile[bytes]]()
        resume = request.resume
        if resume is not None and resume.job:  # the last lines, or those since a time, were shown before
            request = replace(request, tail=None, since=None)
        starts, parts, skips = find_old(self._source, request, self.line_reader)
        for stream, _ in self._source.files(request.filter.stream):
            new_reader = partial(self.reader, stream)
            begin = partial(self._begin, stream, starts[stream], skips[stream])
            followed[stream] = (
                FollowedFile(self._source, stream, new_reader, begin)
                if resume is None
                else FramedFile(
                    self._source, stream, new_reader, begin,
                    resume=resume, context=partial(self._continue, stream), flush=self.end,
                )
            )  # fmt: skip
        return followed, parts

    def format(self, chunks: Iterable[Chunk], stream: Stream = "out") -> Iterator[bytes]:
        """Yield lines, and blocks of lines of this stream, as bytes to print."""
        formatted = (self._format(chunk, stream) for chunk in chunks) if self._folder is None else self._fold(chunks)
        batch: list[bytes] = []
        size = 0
        for part in formatted:
            batch.append(part)
            size += len(part)
            if size >= BLOCK:
                yield b"".join(batch)
                batch.clear()
                size = 0
        if batch:
            yield b"".join(batch)

    def late(self, now: float) -> list[bytes]:
        """Return the lines that have waited long enough for the same line of other ranks."""
        return [] if self._folder is None else [self._format_folded(folded) for folded in self._folder.late(now)]

    def end(self) -> list[bytes]:
        """Return all waiting lines."""
        return [] if self._folder is None else [self._format_folded(folded) for folded in self._folder.end()]

    def keep_bars(self, stream: Stream, lines: Sequence[LogLine]) -> None:
        """Keep the bars that are drawn at this moment, if somebody shows them."""
        if self.bars is None:
            return
        drawn = sorted(lines, key=lambda line: -1 if line.rank is None else line.rank)
        name = f"{self._source.name} " if self._source.name else ""
        self.bars[self._source.name, stream] = [name + format_line(line, self._width) for line in drawn]

    def _format(self, chunk: Chunk, stream: Stream) -> bytes:
        if self.display.raw:
            assert isinstance(chunk, bytes)
            return chunk
        if self.display.terminal:
            assert isinstance(chunk, LogLine)
            return b"%b%b\n" % (self._name, format_line(chunk, self._width, colour=self.display.colour).encode())
        lines = self._format_for_pipe(chunk, stream)
        return _escape(lines) if self._escapes else lines

    def _format_for_pipe(self, chunk: Chunk, stream: Stream) -> bytes:
        if isinstance(chunk, LogLine):
            return b"%b%b\n" % (self._name, pipe_line(chunk))
        return self._name_each(self._labels.mark_err(chunk) if stream == "err" else chunk)

    def _name_each(self, block: bytes) -> bytes:
        """Return lines with the name of their job before each."""
        if not self._name:
            return block
        return self._name + block[:-1].replace(b"\n", b"\n" + self._name) + b"\n"

    def _fold(self, lines: Iterable[Chunk]) -> Iterator[bytes]:
        assert self._folder is not None
        now = None if self._now is None else self._now()
        for folded in self._folder.add(lines, now):  # type: ignore[arg-type]
            yield self._format_folded(folded)

    def _format_folded(self, folded: FoldedLine) -> bytes:
        line, ranks = folded.line, folded.ranks
        text = format_line(line, self._width, colour=self.display.colour, ranks=ranks, world=self._world)
        return b"%b%b\n" % (self._name, text.encode())

    def _continue(self, stream: Stream, file: LogFile, at: int) -> PrintedReader:
        """Return a reader that has read the bytes before an offset, all lines of which are printed."""
        lines = self.line_reader(stream)
        read_before(file, at, lines.blocks)
        return PrintedReader(lines, stream, self)

    def _begin(
        self, stream: Stream, at: int, skip: Skip, file: LogFile, size: int
    ) -> tuple[int, list[bytes], PrintedReader]:
        """For ``FollowedFile``: return the offset of the first byte to read, no items, and the reader from there."""
        lines = self.line_reader(stream)
        read_before(file, at, lines.skip if self._request.tail is None else lines.feed)
        return at, [], PrintedReader(lines, stream, self, skip)


class PrintedReader:
    """Reads lines of one file and formats them, after those that are skipped."""

    def __init__(
        self, lines: LineReader | RawReader, stream: Stream, printer: Printer, skip: Skip | None = None
    ) -> None:
        self._lines, self._stream, self._printer = lines, stream, printer
        self._skip = skip or Skip()

    def feed(self, data: bytes) -> list[bytes]:
        chunks: Sequence[Chunk]
        if self._skip.left:
            chunks = self._skip.drop(self._lines.feed(data))
        elif self._printer.display.terminal and not self._printer.display.raw:
            chunks = self._lines.feed(data)
        else:
            chunks = self._lines.blocks(data)
        return list(self._printer.format(chunks, self._stream))

    def skip(self, data: bytes) -> None:
        self._lines.skip(data)

    def late(self, now: float) -> list[bytes]:
        self._skip.left = 0  # all that existed has been read, or was truncated
        states = self._lines.late(now, are_live=self._printer.bars is not None)
        self._printer.keep_bars(self._stream, self._lines.bars())
        return [*self._printer.format(states), *self._printer.late(now)]

    def end(self) -> list[bytes]:
        self._printer.keep_bars(self._stream, [])
        return list(self._printer.format(self._lines.end()))


def live_lines(bars: LiveBars) -> list[str]:
    """Return the lines of the bars that are drawn at this moment, by job and rank."""
    return [line for _, lines in sorted(bars.items()) for line in lines]


def pipe_line(line: LogLine) -> bytes:
    """Return a line for programs, without newline: ``RANK: text`` as srun labels it, or ``RANK! text`` of err."""
    mark = b"! " if line.stream == "err" else b"" if line.rank is None else b": "
    cut = b" [%d bytes left out]" % line.cut if line.cut else b""
    return b"%b%b%b%b" % (line.label, mark, line.payload, cut)


def _escape(lines: bytes) -> bytes:
    """Return lines with what could act on a terminal escaped, and bytes that are not UTF-8 replaced."""
    return safe_text(lines.decode("utf-8", "replace")).encode()


def format_line(line: LogLine, width: int, *, colour: bool = False, ranks: Iterable[int] = (), world: int = 0) -> str:
    """Return a line for a terminal, without newline: ``RANK| text``, or ``RANK! text`` of err.

    ``width`` is the number of digits of the largest rank. With several ``ranks``, they are printed after the text.
    ``world`` is the number of ranks, 0 if unknown.
    """
    field = f"{'' if line.rank is None else line.rank:>{width}}"
    mark = "!" if line.stream == "err" else "|"
    after = f" [{line.cut} bytes left out]" if line.cut else ""
    after += _format_writers(list(ranks), world)
    if colour:
        field = field if line.rank is None else _paint(field, _COLOURS[line.rank % len(_COLOURS)])
        mark = _paint(mark, _ERR) if line.stream == "err" else mark
        after = _paint(after, _FAINT) if after else after
    return f"{field}{mark} {safe_text(line.text)}{after}"


def _format_writers(ranks: Sequence[int], world: int) -> str:
    """Return who wrote a folded line: how many ranks, and which if they are not all; nothing of a single rank."""
    if len(ranks) < 2:
        return ""
    ranges = format_ranges(ranks).split(", ")
    if len(ranges) > _RANGES_SHOWN:
        ranges[_RANGES_SHOWN:] = ["…"]
    which = "" if len(ranks) == world else f": {', '.join(ranges)}"
    return f"  (×{len(ranks)} ranks{which})"


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


@dataclass
class FoldedLine:
    """A line, and the ranks that wrote it, in the order of writing."""

    line: LogLine
    ranks: dict[int, None]
    at: float = 0.0
    serial: int = 0


class LineFolder:
    """Folds lines in the order in which they are read. A line with ``world`` ranks is complete.

    ``now`` is in seconds; without it, ``add`` measures waiting in lines.
    """

    def __init__(self, world: int | None = None) -> None:
        self._world = world
        self._waiting: deque[FoldedLine] = deque()
        self._by_text: dict[tuple[Stream, bytes], FoldedLine] = {}  # the last waiting line with this stream and text
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
                yield FoldedLine(line, {})
                continue
            self._count += 1
            key = line.stream, line.payload
            same = self._by_text.get(key)
            if same is not None and rank not in same.ranks and self._last.get(rank, -1) < same.serial:
                same.ranks[rank] = None
                self._last[rank] = same.serial
            else:
                self._serial += 1
                new = FoldedLine(line, {rank: None}, self._count if now is None else now, self._serial)
                self._waiting.append(new)
                self._by_text[key] = new
                self._last[rank] = self._serial
                self._size += len(line.payload)
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
        key = first.line.stream, first.line.payload
        if self._by_text.get(key) is first:
            del self._by_text[key]
        self._size -= len(first.line.payload)
        if not self._waiting and len(self._last) > 65_536:
            self._last.clear()
        return first
