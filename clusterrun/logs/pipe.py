"""Turn the bytes of a log file into the bytes for a pipe, block by block where nothing has to change.

The output is that of ``LineReader`` and ``pipe_line`` for each line. A block passes whole only if that is certain: its
characters are safe, no line is long enough to be a piece, and no unfinished line continues in it. With a filter, a
block is searched as a whole on the same conditions, and only the lines found have to be safe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

from clusterrun.logs.complaints import ErrorMatcher
from clusterrun.logs.files import Source, Stream
from clusterrun.logs.lines import LINE_CAP, PIECE, LineReader, LogLine
from clusterrun.logs.request import LineFilter
from clusterrun.terminal.safe_text import is_safe, safe_text

_SHORTER = len("0: ") + PIECE
"""Shorter lines are not pieces."""
_SMALL = 16 * 1024  # bytes: a smaller block is not split again to find the line that must change
_FEW = 32  # ranks: a pattern finds the lines of so few faster than a check of each line
_MARKED = 65_536  # the largest world size whose labels are kept in a table
#: Patterns that match a line alike in any text, and never past its end: no anchors but \b, no lookaround, nothing that
#: matches a newline, no possessive repeat.
_LOCAL = re.compile(
    r"(?:\(\?i\))?"
    r"(?:\((?:\?:|(?!\?))|\|"
    r"|(?:[^\\^$*+?{}()\[\]|\x00-\x1f]|\)|\\[dwSb]|\\[!-/:-@\[-`{-~]"
    r"|\[(?!\^)\]?(?:[^\[\]\\\x00-\x1f]|\\[dwS]|\\[!-/:-@\[-`{-~])*\])"
    r"(?:(?:[*+?]|\{\d+(?:,\d*)?\})\??(?!\+))?)*"
)
_DENSE = 256  # characters from one match to the next; with fewer, checking each line is faster
_SAMPLE = 8  # matches after which that is decided


def pipe_line(line: LogLine) -> bytes:
    """Return a line for programs, without newline: ``RANK: text`` as srun labels it, or ``RANK! text`` of err."""
    mark = "" if line.stream == "out" else "! "
    label = f"{line.label}{mark or ': '}" if line.rank is not None else mark
    cut = f" [{line.cut} bytes left out]" if line.cut else ""
    return f"{label}{safe_text(line.text)}{cut}".encode()


class PipeReader:
    """Turns the bytes of one file, in blocks of any size, into chunks of whole lines for a pipe."""

    def __init__(self, stream: Stream, source: Source, line_filter: LineFilter, lines: LineReader) -> None:
        """``lines`` reads what has to change; if it has read a part of the file, this continues from there."""
        self._lines = lines
        self._name = f"{source.name} ".encode() if source.name else b""
        self._tail = b""  # an unfinished line, unless the line reader has it
        self._few: Callable[[bytes], list[bytes]] | None = None
        if source.ranks is not None and len(source.ranks) <= _FEW:
            self._few = _rank_lines(source.ranks, source.world_size)
        world = source.world_size or 0
        self._marks: dict[bytes, bytes] = {}
        self._width = len(f"{world - 1}: ")
        self._marking = stream == "err"
        self._errors = lines.match if isinstance(lines.match, ErrorMatcher) else None
        by_label = self._errors is None and (self._marking or line_filter.grep is not None)
        labels: set[str] = set()
        if by_label and 0 < world <= _MARKED:
            labels = {f"{rank:>{self._width - 2}}: " for rank in range(world)}
            self._marks = {label.encode(): f"{label[:-2]}! ".encode() for label in labels}
        self._grep = None if line_filter.grep is None else BlockGrep(line_filter.grep, labels, self._width)
        self._can_pass = line_filter.takes_blocks and not (
            (source.ranks is not None and self._few is None) or (by_label and not labels)
        )

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that these bytes complete, in chunks that end in a newline."""
        chunks: list[bytes] = []
        if self._lines.in_line:
            end = data.find(b"\n") + 1
            chunks += self._format(self._lines.feed(data[:end] if end else data))
            if not end:
                return chunks
            data = data[end:]
        end = data.rfind(b"\n") + 1
        if end:
            block, self._tail = b"".join((self._tail, memoryview(data)[:end])), data[end:]
            if self._few is not None:
                block = b"".join(self._few(b"\n" + block[:-1]))
                block = block[1:] + b"\n" if block else b""
            if block:
                self._add(chunks, block)
        else:
            self._tail += data
        if len(self._tail) > LINE_CAP:  # the line reader limits the size of such a line
            chunks += self._format(self._lines.feed(self._tail))
            self._tail = b""
        return chunks

    def skip(self, data: bytes) -> None:
        """Take bytes before the offset where reading begins."""
        self._lines.skip(data)

    def late(self, now: float) -> list[bytes]:
        """Return states of progress bars to show before their last one."""
        return self._format(self._lines.late(now))

    def end(self) -> list[bytes]:
        """Return the unfinished lines."""
        lines = self._lines.feed(self._tail) if self._tail else []
        self._tail = b""
        return self._format(lines + self._lines.end())

    def _add(self, chunks: list[bytes], block: bytes) -> None:
        """Add whole lines: at once if that is certain, else one half after the other."""
        passed = self._pass_block(block) if self._can_pass else None
        if passed is not None:
            if passed:
                chunks.append(passed)
            return
        all_pass = self._errors is None and self._grep is None
        if self._can_pass and len(block) > _SMALL and (not all_pass or _is_short(block)):
            middle = block.rfind(b"\n", 0, len(block) // 2) + 1 or block.find(b"\n", len(block) // 2) + 1
            if 0 < middle < len(block):
                self._add(chunks, block[:middle])
                self._add(chunks, block[middle:])
                return
        if self._can_pass and all_pass:
            for piece in self._lines.join(block):
                chunks += self._format([piece]) if isinstance(piece, LogLine) else [self._mark(_escape(piece))]
        else:
            chunks += self._format(self._lines.feed(block))

    def _pass_block(self, block: bytes) -> bytes | None:
        """Return the output of a block, None if that needs a check of each line."""
        if not _is_short(block) or self._lines.waits_for(block):
            return None
        if (self._errors is not None or self._grep is not None) and (b"\r" in block or b"\b" in block):
            return None  # a line left out may be a state of a bar
        if self._errors is not None:
            found = self._errors.find_errors(block[:-1], self._lines.single)
            return b"".join(self._format(self._lines.feed(block) if found is None else found))
        if self._grep is not None:
            kept = self._grep.lines(block[:-1].decode("utf-8", "replace"))
            return self._mark(_escape("\n".join([*kept, ""]).encode())) if kept else b""
        return self._mark(block) if is_safe(block) else None

    def _mark(self, block: bytes) -> bytes:
        """Return lines with the mark of err, and the name of their job before each."""
        if self._marking:
            width, marked = self._width, self._marks.get
            lines = block[:-1].split(b"\n")
            block = b"\n".join([(marked(x[:width]) or b"! " + x[:width]) + x[width:] for x in lines]) + b"\n"
        if self._name:
            block = self._name + block[:-1].replace(b"\n", b"\n" + self._name) + b"\n"
        return block

    def _format(self, lines: Iterable[LogLine]) -> list[bytes]:
        chunk = b"".join([self._name + pipe_line(line) + b"\n" for line in lines])
        return [chunk] if chunk else []


def _escape(lines: bytes) -> bytes:
    """Return lines with unsafe characters escaped; neither that nor a replaced byte removes a newline."""
    return lines if is_safe(lines) else safe_text(lines.decode("utf-8", "replace")).encode()


def _is_short(block: bytes) -> bool:
    """Whether every line is shorter than a piece; searches newlines backwards in steps of that length."""
    at, find = 0, block.rfind
    last = len(block) - _SHORTER
    while at < last:
        at = find(b"\n", at, at + _SHORTER) + 1
        if not at:
            return False
    return True


def _rank_lines(ranks: Iterable[int], world_size: int | None) -> Callable[[bytes], list[bytes]]:
    """Return a function that finds the lines with these labels in a block with a newline before each line."""
    if world_size is None:
        labels = [f"{{0,{10 - len(str(rank))}}}".join((" ", str(rank))) for rank in sorted(ranks)]
    else:
        labels = [f"{rank:>{len(str(world_size - 1))}}" for rank in sorted(ranks) if rank < world_size]
    return re.compile(f"\n(?:{'|'.join(labels)}): [^\n]*".encode()).findall if labels else lambda _: []


class BlockGrep:
    """Finds the lines of a text that match a pattern after their label."""

    def __init__(self, pattern: re.Pattern[str], labels: Collection[str], width: int) -> None:
        """``labels`` are all ``width`` characters wide; the pattern does not see them."""
        self._search, self._labels, self._width = pattern.search, labels, width
        self._local = is_local(pattern)

    def lines(self, text: str) -> list[str]:
        """Return the matching lines, without newlines, of a text of whole lines without its last newline."""
        kept: list[str] = []
        at = matches = 0
        while self._local:
            found = self._search(text, at)
            if found is None:
                return kept
            begin = text.rfind("\n", at, found.start()) + 1 or at
            end = text.find("\n", found.start())
            line = text[begin:] if end < 0 else text[begin:end]
            kept += self._matching([line])
            if end < 0:
                return kept
            at, matches = end + 1, matches + 1
            if matches == _SAMPLE and at < _DENSE * _SAMPLE:
                break
        return kept + self._matching(text[at:].split("\n"))

    def _matching(self, lines: list[str]) -> list[str]:
        search, labels, width = self._search, self._labels, self._width
        return [line for line in lines if search(line[width:] if line[:width] in labels else line)]


def is_local(pattern: re.Pattern[str]) -> bool:
    """Whether a pattern matches a line alike in any text that contains it; False if in doubt."""
    return not pattern.flags & ~(re.UNICODE | re.IGNORECASE) and _LOCAL.fullmatch(pattern.pattern) is not None


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
