"""From the bytes of a log file to the bytes of a pipe: blocks in which nothing has to be changed pass as they are.

What comes out is what ``LineReader`` and ``pipe_line`` would make of each line. A block may pass whole only where that
is certain: its characters are safe, no line is so long that it could be a piece, and nothing unfinished waits for it.
Where lines are chosen, a block is searched as a whole, on the same conditions, and only what is found has to be safe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from clusterrun.logs.complaints import Complaints
from clusterrun.logs.grep import Finder
from clusterrun.logs.lines import LINE_CAP, PIECE, LineReader, LogLine, Stream
from clusterrun.logs.wanted import LineFilter, Source
from clusterrun.terminal.safe_text import is_safe, safe_text

_SHORTER = len("0: ") + PIECE
"""Lines of fewer bytes than this are no pieces."""
_SMALL = 16 * 1024  # bytes that are not worth cutting again to find the line that is not clean
_FEW = 32  # ranks that a pattern finds faster than a look at each line
_MARKED = 65_536  # the largest world whose labels are kept in a table


def pipe_line(line: LogLine) -> bytes:
    """A line for programs: ``RANK: text`` as srun labels it, ``RANK! text`` of err; no newline."""
    mark = "" if line.stream == "out" else "! "
    label = f"{line.label}{mark or ': '}" if line.rank is not None else mark
    cut = f" [{line.cut} bytes left out]" if line.cut else ""
    return f"{label}{safe_text(line.text)}{cut}".encode()


class PipeReader:
    """Turns the bytes of one file, in blocks of any size, into chunks of whole lines for a pipe."""

    def __init__(self, stream: Stream, source: Source, want: LineFilter, lines: LineReader) -> None:
        """``lines`` reads what has to be changed; where it has begun with the file, this goes on from there."""
        self._lines = lines
        self._name = f"{source.name} ".encode() if source.name else b""
        self._tail = b""  # a line whose end has not come, unless the reader of lines has it
        self._few: Callable[[bytes], list[bytes]] | None = None
        if source.ranks is not None and len(source.ranks) <= _FEW:
            self._few = _rank_lines(source.ranks, source.world_size)
        world = source.world_size or 0
        self._marks: dict[bytes, bytes] = {}
        self._width = len(f"{world - 1}: ")
        self._marking = stream == "err"
        self._complaints = lines.match if isinstance(lines.match, Complaints) else None
        by_label = self._complaints is None and (self._marking or want.grep is not None)
        labels: set[str] = set()
        if by_label and 0 < world <= _MARKED:
            labels = {f"{rank:>{self._width - 2}}: " for rank in range(world)}
            self._marks = {label.encode(): f"{label[:-2]}! ".encode() for label in labels}
        self._grep = None if want.grep is None else Finder(want.grep, labels, self._width)
        self._can_pass = not ((source.ranks is not None and self._few is None) or (by_label and not labels))

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete, in chunks that end in a newline."""
        chunks: list[bytes] = []
        if self._lines.in_line:
            end = data.find(b"\n") + 1
            self._slowly(chunks, data[:end] if end else data)
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
        if len(self._tail) > LINE_CAP:  # the reader of lines keeps such a line within bounds
            self._slowly(chunks, self._tail)
            self._tail = b""
        return chunks

    def skip(self, data: bytes) -> None:
        """Take what stands before the place where reading begins."""
        self._lines.skip(data)

    def late(self, now: float) -> list[bytes]:
        """States of progress bars that should be seen before their last one."""
        return self._made(self._lines.late(now))

    def end(self) -> list[bytes]:
        """The lines still unfinished."""
        lines = self._lines.feed(self._tail) if self._tail else []
        self._tail = b""
        return self._made(lines + self._lines.end())

    def _add(self, chunks: list[bytes], block: bytes) -> None:
        """Take whole lines: at once where that is certain, else first one half of them, then the other."""
        passed = self._at_once(block) if self._can_pass else None
        if passed is not None:
            if passed:
                chunks.append(passed)
            return
        all_wanted = self._complaints is None and self._grep is None
        if self._can_pass and len(block) > _SMALL and (not all_wanted or _is_short(block)):
            middle = block.rfind(b"\n", 0, len(block) // 2) + 1 or block.find(b"\n", len(block) // 2) + 1
            if 0 < middle < len(block):
                self._add(chunks, block[:middle])
                self._add(chunks, block[middle:])
                return
        if self._can_pass and all_wanted:
            for piece in self._lines.join(block):
                chunks += self._made([piece]) if isinstance(piece, LogLine) else [self._marked(_spelled(piece))]
        else:
            self._slowly(chunks, block)

    def _at_once(self, block: bytes) -> bytes | None:
        """What is shown of a block; None where it is not certain without a look at each line."""
        if not _is_short(block) or self._lines.waits_for(block):
            return None
        if self._complaints is not None:
            return self._told(block, self._complaints)
        if self._grep is not None:
            return self._found(block, self._grep)
        return self._marked(block) if is_safe(block) else None

    def _told(self, block: bytes, complaints: Complaints) -> bytes | None:
        if b"\r" in block:
            return None  # what is left out may be a state of a bar
        told = complaints.told(block[:-1], self._lines.single)
        return b"".join(self._made(self._lines.feed(block) if told is None else told))

    def _found(self, block: bytes, grep: Finder) -> bytes | None:
        if b"\r" in block:
            return None
        kept = grep.lines(block[:-1].decode("utf-8", "replace"))
        if not kept:
            return b""
        text = "\n".join([*kept, ""])
        return self._marked(_spelled(text.encode()))

    def _marked(self, block: bytes) -> bytes:
        """What is shown of these lines: those of err marked, each with the name of its job."""
        if self._marking:
            width, marked = self._width, self._marks.get
            lines = block[:-1].split(b"\n")
            block = b"\n".join([(marked(x[:width]) or b"! " + x[:width]) + x[width:] for x in lines]) + b"\n"
        if self._name:
            block = self._name + block[:-1].replace(b"\n", b"\n" + self._name) + b"\n"
        return block

    def _slowly(self, chunks: list[bytes], data: bytes) -> None:
        chunks += self._made(self._lines.feed(data))

    def _made(self, lines: Iterable[LogLine]) -> list[bytes]:
        made = b"".join([self._name + pipe_line(line) + b"\n" for line in lines])
        return [made] if made else []


def _spelled(lines: bytes) -> bytes:
    """Lines with all that is unsafe in them spelled out; neither that nor a replaced byte takes a newline with it."""
    return lines if is_safe(lines) else safe_text(lines.decode("utf-8", "replace")).encode()


def _is_short(block: bytes) -> bool:
    """Whether no line is as long as a piece; whole lines are gone over in steps of that length."""
    at, find = 0, block.rfind
    last = len(block) - _SHORTER
    while at < last:
        at = find(b"\n", at, at + _SHORTER) + 1
        if not at:
            return False
    return True


def _rank_lines(ranks: Iterable[int], world_size: int | None) -> Callable[[bytes], list[bytes]]:
    """Finds the lines with these labels in a block in which a newline goes before each line."""
    if world_size is None:
        labels = [f"{{0,{10 - len(str(rank))}}}".join((" ", str(rank))) for rank in sorted(ranks)]
    else:
        labels = [f"{rank:>{len(str(world_size - 1))}}" for rank in sorted(ranks) if rank < world_size]
    return re.compile(f"\n(?:{'|'.join(labels)}): [^\n]*".encode()).findall if labels else lambda _: []
