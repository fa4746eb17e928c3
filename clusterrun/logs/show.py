"""The logs of jobs as bytes that are ready to be written: for people on a terminal, for programs in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from clusterrun.logs.files import LogFile
from clusterrun.logs.fold import Folded, Folder
from clusterrun.logs.follow import POLL, Track, beginning_at, follow_tracks
from clusterrun.logs.lines import LineReader, LogLine, Stream
from clusterrun.logs.look import Look, folded_line, terminal_line
from clusterrun.logs.merge import offsets_at
from clusterrun.logs.pipe import PipeReader, pipe_line
from clusterrun.logs.raw import RawReader
from clusterrun.logs.reading import Reader, last_lines, line_reader, read
from clusterrun.logs.wanted import LineFilter, Notice, Source

Now = Callable[[], float]
_BATCH = 256  # lines made into one chunk


def show(
    sources: Sequence[Source], want: LineFilter, look: Look, *, tail: int | None = None, since: float | None = None
) -> Iterator[bytes]:
    """The logs of jobs, one after the other, as they are now; ``tail`` and ``since`` as in ``read_lines``."""
    for source in sources:
        printer = Printer(source, want, look)
        if tail is None or look.raw:
            yield from read(source, want, partial(printer.reader, by_line=tail is not None), tail=tail, since=since)
        else:
            lines = partial(line_reader, source=source, want=want)
            yield from printer.made(read(source, want, lines, tail=tail, since=since))
        yield from printer.end()


def show_following(
    sources: Sequence[Source],
    want: LineFilter,
    look: Look,
    *,
    stop: Callable[[], bool],
    tail: int | None = None,
    since: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    now: Now = time.monotonic,
    poll: float = POLL,
) -> Iterator[bytes | Notice]:
    """The logs of jobs as they grow, until ``stop()``, which is asked when there is nothing new; see ``follow``."""
    printers = [Printer(source, want, look, now) for source in sources]
    tracks = [track for printer in printers for track in printer.tracks(tail, since)]
    yield from follow_tracks(tracks, stop=stop, sleep=sleep, now=now, poll=poll)
    for printer in printers:
        yield from printer.end()


class Printer:
    """Makes the lines of one job's files look as asked; with ``now`` lines wait for their like by time."""

    def __init__(self, source: Source, want: LineFilter, look: Look, now: Now | None = None) -> None:
        self._source, self._want, self._look, self._now = source, want, look, now
        self._name = f"{source.name} " if source.name else ""
        self._width = len(str(source.world_size - 1)) if source.world_size else 1
        shown = source.world_size if source.ranks is None else len(source.ranks)
        self._world = shown or 0
        self._folder = Folder(shown) if look.fold and not look.raw else None

    def reader(self, stream: Stream, by_line: bool = False, lines: LineReader | None = None) -> Reader[bytes]:
        """What turns a file's bytes into chunks for this look; goes on from ``lines`` where that has begun."""
        if self._look.raw:
            return RawReader(stream, self._source, self._want, by_line=by_line)
        lines = lines or line_reader(stream, self._source, self._want)
        if self._look.terminal:
            return _PeopleReader(lines, self)
        return PipeReader(stream, self._source, self._want, lines)

    def tracks(self, tail: int | None, since: float | None) -> list[Track[bytes]]:
        """The files to follow, from their beginning, their last lines or a time on."""
        found: list[Track[bytes]] = []
        for stream, _ in self._source.files(self._want.stream):
            new_reader = partial(self.reader, stream)
            begin: Callable[[LogFile, int], tuple[int, Iterable[bytes], Reader[bytes]]] | None = None
            if tail is not None:
                begin = partial(self._last, stream, tail)
            elif since is not None:
                begin = beginning_at(new_reader, self._offset(stream, since))
            found.append(Track(self._source, stream, new_reader, begin))
        return found

    def made(self, lines: Iterable[LogLine]) -> Iterator[bytes]:
        """Lines as chunks of bytes."""
        batch: list[bytes] = []
        for line in self._looks(lines):
            batch.append(line)
            if len(batch) == _BATCH:
                yield b"".join(batch)
                batch.clear()
        if batch:
            yield b"".join(batch)

    def late(self, now: float) -> list[bytes]:
        """The lines that have waited long enough for their like."""
        return [] if self._folder is None else self._joined(self._folder.late(now))

    def end(self) -> list[bytes]:
        """All lines that wait."""
        return [] if self._folder is None else self._joined(self._folder.end())

    def _looks(self, lines: Iterable[LogLine]) -> Iterator[bytes]:
        if self._folder is not None:
            now = None if self._now is None else self._now()
            for folded in self._folder.add(lines, now):
                yield self._folded(folded)
        elif self._look.terminal:
            for line in lines:
                text = terminal_line(line, self._width, colour=self._look.colour)
                yield f"{self._name}{text}\n".encode()
        else:
            for line in lines:
                yield self._name.encode() + pipe_line(line) + b"\n"

    def _joined(self, lines: Iterable[Folded]) -> list[bytes]:
        joined = b"".join(map(self._folded, lines))
        return [joined] if joined else []

    def _folded(self, folded: Folded) -> bytes:
        text = folded_line(folded, self._width, colour=self._look.colour, world=self._world)
        return f"{self._name}{text}\n".encode()

    def _last(self, stream: Stream, tail: int, file: LogFile, end: int) -> tuple[int, Iterable[bytes], Reader[bytes]]:
        """For ``Track.begin``: the last lines of a file, and what goes on after them."""
        if self._look.raw:
            raw, reader, _ = last_lines(file, end, tail, partial(self.reader, stream, by_line=True), finish=False)
            return end, raw, reader
        lines = partial(line_reader, stream, self._source, self._want)
        last, going_on, _ = last_lines(file, end, tail, lines, finish=False)
        return end, self.made(last), self.reader(stream, lines=going_on)

    def _offset(self, stream: Stream, since: float) -> int:
        far = (1 << 62, 1 << 62)  # how long the file is now is seen when it is open
        return offsets_at(self._source.ticks, far, since)[stream == "err"]


class _PeopleReader:
    """A reader of lines and the printer that shows them."""

    def __init__(self, lines: LineReader, printer: Printer) -> None:
        self._lines, self._printer = lines, printer

    def feed(self, data: bytes) -> list[bytes]:
        return list(self._printer.made(self._lines.feed(data)))

    def skip(self, data: bytes) -> None:
        self._lines.skip(data)

    def late(self, now: float) -> list[bytes]:
        return [*self._printer.made(self._lines.late(now)), *self._printer.late(now)]

    def end(self) -> list[bytes]:
        return list(self._printer.made(self._lines.end()))
