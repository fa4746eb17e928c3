"""One line of a log, and the label that ``srun --label`` puts before it: ``RANK: ``.

The rank is right-aligned to the width of the largest.
"""

from __future__ import annotations

from typing import NamedTuple

from clusterrun.logs.files import Stream

LABEL_CAP = 12
"""The length of the longest label, "4294967294: "."""
_KEPT = 65_536  # labels whose rank is remembered


class LogLine(NamedTuple):
    """One line of a log. ``rank`` is its srun label (the task); None for lines of the batch script and Slurm.

    ``payload`` has no label and no newline. ``cut`` is the number of bytes left out after it. ``label`` is the rank as
    it is in the file, with blanks.
    """

    # a tuple: building one takes half the time of a frozen dataclass, and there are millions
    stream: Stream
    rank: int | None
    payload: bytes
    cut: int = 0
    label: bytes = b""

    @property
    def text(self) -> str:
        """The payload as text, which must not be printed without ``safe_text``."""
        return self.payload.decode("utf-8", "replace")


class Labels:
    """The labels of one log.

    With ``world_size``, a number is a label only if srun could have written it: as wide as the largest rank, and below
    the world size. Without it, any ``N: `` is one.
    """

    def __init__(self, world_size: int | None) -> None:
        self._world_size = world_size
        self._width = len(str(world_size - 1)) if world_size else None
        self._ranks: dict[bytes, int] = {}
        self._texts: set[str] = set()  # the labels in it, as text

    def split(self, raw: bytes) -> tuple[int | None, bytes, bytes]:
        """Return (rank, label, the rest) of a line of the file."""
        end = raw.find(b": ", 0, LABEL_CAP)
        if end <= 0:
            return None, b"", raw
        label = raw[:end]
        rank = self._ranks.get(label)
        if rank is None:
            rank = self._parse(label)
            if rank is None:
                return None, b"", raw
        return rank, label, raw[end + 2 :]

    def without(self, line: str) -> str:
        """Return a line of the file without its label."""
        end = line.find(": ", 0, LABEL_CAP)
        if end <= 0:
            return line
        label = line[:end]
        if label in self._texts or (label.isascii() and self._parse(label.encode()) is not None):
            return line[end + 2 :]
        return line

    def pattern(self, rank: int) -> bytes | None:
        """Return a regular expression for the label of a rank, None if there is no such rank."""
        if self._width is None or self._world_size is None:
            return b" {0,%d}%d" % (LABEL_CAP - len(": ") - len(str(rank)), rank)
        return b"%*d" % (self._width, rank) if rank < self._world_size else None

    def lines(self, stream: Stream, block: bytes) -> list[LogLine]:
        """Return the LogLines of whole lines, none of which is a piece or draws a progress bar."""
        split, make = self.split, tuple.__new__  # locals, as this is a hot loop
        lines = []
        for raw in block[:-1].split(b"\n"):
            rank, label, payload = split(raw)
            lines.append(make(LogLine, (stream, rank, payload, 0, label)))
        return lines

    def mark_err(self, block: bytes) -> bytes:
        """Return whole lines with ``! `` in place of the ``: `` of their labels, or before lines without a label."""
        split = self.split
        marked = []
        for raw in block[:-1].split(b"\n"):
            _, label, payload = split(raw)
            marked.append(b"%b! %b\n" % (label, payload))
        return b"".join(marked)

    def _parse(self, label: bytes) -> int | None:
        """Return the rank of a label, None if srun would not write it."""
        digits = label.lstrip(b" ")
        if not digits.isdigit() or (digits[:1] == b"0" and digits != b"0"):
            return None
        rank = int(digits)
        if self._world_size is not None and (rank >= self._world_size or len(label) != self._width):
            return None
        if len(self._ranks) < _KEPT:
            self._ranks[label] = rank
            self._texts.add(label.decode())
        return rank
