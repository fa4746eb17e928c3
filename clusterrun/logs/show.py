"""Turn the logs of jobs into bytes ready to print: for people on a terminal, for programs in a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from clusterrun.logs.display import format_line
from clusterrun.logs.files import LogFile
from clusterrun.logs.fold import Folded, Folder
from clusterrun.logs.follow import FollowedFile, Timing, begin_at, follow_files
from clusterrun.logs.lines import LineReader, LogLine, Stream
from clusterrun.logs.merge import offsets_at
from clusterrun.logs.pipe import PipeReader, pipe_line
from clusterrun.logs.raw import RawReader
from clusterrun.logs.reading import Reader, last_lines, line_reader, read, read_lines
from clusterrun.logs.request import LogRequest, Notice, Source

_BATCH = 256  # lines joined into one chunk


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
    """Yield the logs of jobs as they grow, until ``stop()``; see ``follow_files``."""
    timing = timing or Timing()
    printers = [Printer(source, request, timing.now) for source in sources]
    files = [file for printer in printers for file in printer.followed_files()]
    yield from follow_files(files, stop=stop, timing=timing)
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
        self._folder = Folder(shown) if self._display.fold and not self._display.raw else None

    def reader(self, stream: Stream, by_line: bool = False, lines: LineReader | None = None) -> Reader[bytes]:
        """Return a reader that turns a file's bytes into chunks to print; it continues ``lines`` if given."""
        if self._display.raw:
            return RawReader(stream, self._source, self._request.filter, by_line=by_line)
        lines = lines or line_reader(stream, self._source, self._request.filter)
        if self._display.terminal:
            return _TerminalReader(lines, self)
        return PipeReader(stream, self._source, self._request.filter, lines)

    def followed_files(self) -> list[FollowedFile[bytes]]:
        """Return the files to follow, from their start, their last lines or a time."""
        found: list[FollowedFile[bytes]] = []
        for stream, _ in self._source.files(self._request.filter.stream):
            new_reader = partial(self.reader, stream)
            begin: Callable[[LogFile, int], tuple[int, Iterable[bytes], Reader[bytes]]] | None = None
            if self._request.tail is not None:
                begin = partial(self._last, stream, self._request.tail)
            elif self._request.since is not None:
                begin = begin_at(new_reader, self._offset(stream, self._request.since))
            found.append(FollowedFile(self._source, stream, new_reader, begin))
        return found

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

    def _join_folded(self, lines: Iterable[Folded]) -> list[bytes]:
        joined = b"".join(map(self._format_folded, lines))
        return [joined] if joined else []

    def _format_folded(self, folded: Folded) -> bytes:
        text = format_line(folded.line, self._width, colour=self._display.colour, ranks=folded.ranks, world=self._world)
        return f"{self._name}{text}\n".encode()

    def _last(self, stream: Stream, tail: int, file: LogFile, end: int) -> tuple[int, Iterable[bytes], Reader[bytes]]:
        """For ``FollowedFile``: return the end, the last lines of a file, and the reader of what follows."""
        if self._display.raw:
            raw, reader, _ = last_lines(file, end, tail, partial(self.reader, stream, by_line=True), finish=False)
            return end, raw, reader
        lines = partial(line_reader, stream, self._source, self._request.filter)
        last, continued, _ = last_lines(file, end, tail, lines, finish=False)
        return end, self.format(last), self.reader(stream, lines=continued)

    def _offset(self, stream: Stream, since: float) -> int:
        far = (1 << 62, 1 << 62)  # begin_at() checks the size of the open file
        return offsets_at(self._source.ticks, far, since)[stream == "err"]


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
