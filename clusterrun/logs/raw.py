"""Read the unchanged bytes of a log, with labels: all of them, or the requested lines."""

from __future__ import annotations

from clusterrun.logs.lines import LINE_CAP, LineReader, LogLine, Stream
from clusterrun.logs.request import LineFilter, Source


class RawReader:
    """Passes the bytes of one file. With a filter, or ``by_line``, each item is a line of the file.

    A line is matched as it is in the file: pieces of a long line are not joined, states of a bar not replaced.
    """

    def __init__(self, stream: Stream, source: Source, line_filter: LineFilter, *, by_line: bool = False) -> None:
        self._stream, self._ranks, self._match = stream, source.ranks, line_filter.match()
        self._labels = LineReader(stream, world_size=source.world_size)
        self._whole = not by_line and self._ranks is None and self._match is None
        self._tail = b""
        self._passing: bool | None = None  # of a line so long that only its beginning was matched

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that these bytes complete, or the bytes themselves if no line is left out."""
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
        """Take bytes before the offset where reading begins."""
        self.feed(data)

    def late(self, _now: float) -> list[bytes]:
        """Return nothing: no line waits here."""
        return []

    def end(self) -> list[bytes]:
        """Return the last line if it has no newline."""
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
