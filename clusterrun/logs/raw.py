"""The bytes of a log as they are, labels and all: whole, or the lines that are asked for."""

from __future__ import annotations

from clusterrun.logs.lines import LINE_CAP, LineReader, LogLine, Stream
from clusterrun.logs.wanted import LineFilter, Source


class RawReader:
    """Passes the bytes of one file; where lines are chosen, or ``by_line``, an item is a line as the file has it.

    Each line is judged as it stands in the file: pieces of a long one are not joined, states of a bar not replaced.
    """

    def __init__(self, stream: Stream, source: Source, want: LineFilter, *, by_line: bool = False) -> None:
        self._stream, self._ranks, self._match = stream, source.ranks, want.match()
        self._labels = LineReader(stream, world_size=source.world_size)
        self._whole = not by_line and self._ranks is None and self._match is None
        self._tail = b""
        self._passing: bool | None = None  # of a line so long that its beginning was judged

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete; bytes at once where all are wanted."""
        if self._whole:
            return [data]
        kept: list[bytes] = []
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            if self._passes(line):
                kept.append(line + b"\n")
            self._passing = None
        if len(self._tail) > LINE_CAP:
            self._passing = self._passes(self._tail)
            if self._passing:
                kept.append(self._tail)
            self._tail = b""
        return kept

    def skip(self, data: bytes) -> None:
        """Take what stands before the place where reading begins."""
        self.feed(data)

    def late(self, _now: float) -> list[bytes]:
        """Nothing waits here."""
        return []

    def end(self) -> list[bytes]:
        """The last line, where its newline has not come."""
        tail, self._tail = self._tail, b""
        return [tail] if tail and self._passes(tail) else []

    def _passes(self, raw: bytes) -> bool:
        if self._passing is not None:
            return self._passing
        rank, label, payload = self._labels.split(raw)
        if self._ranks is not None and rank not in self._ranks:
            return False
        if self._match is None:
            return True
        return self._match(LogLine(self._stream, rank, payload.decode("utf-8", "replace"), label=label))
