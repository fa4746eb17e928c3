"""The parts of a log that tell how it ended: its beginning, its end, and the place where trouble is first named.

A log may have gigabytes. What is read is bounded, and what was left out is counted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from clusterrun.logs.files import LogFile
from clusterrun.logs.lines import LineReader, LogLine, Stream

HEAD = 512 * 1024
TAIL = 4 * 1024 * 1024
AROUND = 512 * 1024
"""Bytes read after the first mention of trouble between beginning and end."""
SEARCHED = 512 * 1024 * 1024
"""Bytes between beginning and end that are searched for such a mention."""


@dataclass(slots=True)
class Ends:
    """The lines read, each with its number in the file where it was counted; ``skipped`` is the bytes not read."""

    path: Path
    size: int
    lines: list[tuple[int | None, LogLine]] = field(default_factory=list)
    skipped: int = 0


def read_ends(
    path: Path,
    stream: Stream,
    *,
    world_size: int | None = None,
    since: Sequence[bytes] = (),
    mention: Sequence[bytes] = (),
    begin: int = 0,
    owners: Collection[int] | None = None,
) -> Ends:
    """What stands at both ends of a log, and around the first of the words ``mention`` in between.

    ``since`` are words of which the last one in the file begins what counts (a job that was started again appends).
    ``begin`` and ``owners`` are those of LogFile, which says what is raised.
    """
    with closing(LogFile(path, begin, owners)) as file:
        size = file.size()
        at = _last(file, size, since) if since else 0
        found = Ends(path, size)
        first = 1 if at == 0 and file.begin == 0 else None  # the lines before it are not counted
        if size - at <= HEAD + TAIL:
            _add(found, file, at, size, stream, world_size, number=first)
            return found
        middle, end = at + HEAD, size - TAIL
        _add(found, file, at, middle, stream, world_size, number=first)
        found.skipped = end - middle
        named = _first(file, middle, end, mention) if mention else None
        if named is not None:
            start, stop = max(middle, named - 4096), min(end, named + AROUND)
            _add(found, file, start, stop, stream, world_size, number=None)
            found.skipped -= stop - start
        _add(found, file, end, size, stream, world_size, number=None)
        return found


def _add(
    found: Ends, file: LogFile, start: int, end: int, stream: Stream, world_size: int | None, number: int | None
) -> None:
    """Read the lines from ``start`` to ``end``, without the pieces of lines at cuts."""
    data = b"".join(file.blocks(start, end))
    reader = LineReader(stream, world_size=world_size)
    raws = data.split(b"\n")
    rest = raws.pop()
    if number is None and start > 0 and raws:
        reader.feed(raws.pop(0) + b"\n")  # the rest of a line, or of the pieces of one
        reader.end()
    for raw in raws:  # one by one: a line that srun cut in pieces is one line here, and several in the file
        found.lines += [(number, line) for line in reader.feed(raw + b"\n")]
        number = None if number is None else number + 1
    if end == found.size:
        found.lines += [(number, line) for line in reader.feed(rest) + reader.end()]


def _last(file: LogFile, size: int, words: Sequence[bytes]) -> int:
    """Where the last line with one of the words begins, 0 where there is none within what is searched."""
    overlap, end, best = max(map(len, words)), size, 0
    while end > 0 and not best and size - end < SEARCHED:
        start = max(0, end - TAIL)
        data = b"".join(file.blocks(start, min(size, end + overlap)))
        at = max(data.rfind(word) for word in words)
        if at >= 0:
            best = start + data.rfind(b"\n", 0, at) + 1
        end = start
    return best


def _first(file: LogFile, start: int, end: int, words: Sequence[bytes]) -> int | None:
    """Where the first of the words stands between two offsets, None where none does within what is searched."""
    overlap, before, at = max(map(len, words)), b"", start
    for block in file.blocks(start, min(end, start + SEARCHED)):
        data = before + block
        hits = [hit for word in words if (hit := data.find(word)) >= 0]
        if hits:
            return at - len(before) + min(hits)
        before = data[-overlap:]
        at += len(block)
    return None
