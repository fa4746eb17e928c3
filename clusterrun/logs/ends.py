"""Read the parts of a log that show how a job ended: both ends, and the first mention of an error between them.

A log may have gigabytes: the bytes read are bounded, and the bytes skipped are counted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from clusterrun.logs.files import LogFile, Stream
from clusterrun.logs.labels import LogLine
from clusterrun.logs.lines import LineReader

HEAD = 512 * 1024
TAIL = 4 * 1024 * 1024
AROUND = 512 * 1024
"""Bytes read after the first mention of an error between both ends."""
SEARCHED = 512 * 1024 * 1024
"""Bytes between both ends that are searched for such a mention."""


@dataclass(slots=True)
class Ends:
    """The lines read, each with its number in the file if known; ``skipped`` is the number of bytes not read."""

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
    sizes: tuple[int, int] | None = None,
) -> Ends:
    """Return the lines at both ends of a log, and those around the first text of ``mention`` in between.

    ``sizes`` are the bytes read at its ends, HEAD and TAIL by default. Lines before the last text of ``since`` in the
    file are left out, as a restarted job appends to its log. ``begin`` and ``owners`` are those of LogFile. Raises what
    LogFile raises.
    """
    head, tail = sizes or (HEAD, TAIL)
    with closing(LogFile(path, begin, owners)) as file:
        size = file.size()
        at = _find_last_line(file, size, since) if since else 0
        found = Ends(path, size)
        first = 1 if at == 0 and file.begin == 0 else None  # the lines before it are not counted
        if size - at <= head + tail:
            _add(found, file, at, size, stream, world_size, number=first)
            return found
        middle, end = at + head, size - tail
        _add(found, file, at, middle, stream, world_size, number=first)
        found.skipped = end - middle
        found_at = _find_first(file, middle, end, mention) if mention else None
        if found_at is not None:
            start, stop = max(middle, found_at - 4096), min(end, found_at + AROUND)
            _add(found, file, start, stop, stream, world_size, number=None)
            found.skipped -= stop - start
        _add(found, file, end, size, stream, world_size, number=None)
        return found


def _add(
    found: Ends, file: LogFile, start: int, end: int, stream: Stream, world_size: int | None, number: int | None
) -> None:
    """Add the lines from ``start`` to ``end``, without partial lines at cuts."""
    data = b"".join(file.blocks(start, end))
    reader = LineReader(stream, world_size=world_size)
    raws = data.split(b"\n")
    rest = raws.pop()
    if number is None and start > 0 and raws:
        reader.feed(raws.pop(0) + b"\n")  # the rest of a line, or of its pieces
        reader.end()
    for raw in raws:  # one by one: a line in pieces is one line here, and several in the file
        found.lines += [(number, line) for line in reader.feed(raw + b"\n")]
        number = None if number is None else number + 1
    if end == found.size:
        found.lines += [(number, line) for line in reader.feed(rest) + reader.end()]


def _find_last_line(file: LogFile, size: int, texts: Sequence[bytes]) -> int:
    """Return the offset of the last line with one of the texts, 0 if none is found in the bytes searched."""
    overlap, end, best = max(map(len, texts)), size, 0
    while end > 0 and not best and size - end < SEARCHED:
        start = max(0, end - TAIL)
        data = b"".join(file.blocks(start, min(size, end + overlap)))
        at = max(data.rfind(text) for text in texts)
        if at >= 0:
            best = start + data.rfind(b"\n", 0, at) + 1
        end = start
    return best


def _find_first(file: LogFile, start: int, end: int, texts: Sequence[bytes]) -> int | None:
    """Return the offset of the first of the texts, None if none is found in the bytes searched."""
    overlap, before, at = max(map(len, texts)), b"", start
    for block in file.blocks(start, min(end, start + SEARCHED)):
        data = before + block
        hits = [hit for text in texts if (hit := data.find(text)) >= 0]
        if hits:
            return at - len(before) + min(hits)
        before = data[-overlap:]
        at += len(block)
    return None
