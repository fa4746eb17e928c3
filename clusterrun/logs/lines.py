"""Turn the bytes of one log file into lines: labels removed, srun's pieces joined, in bounded memory.

``srun --label`` writes ``RANK: text``, the rank right-aligned to the width of the largest. slurmstepd
sends whole lines in messages of at most 1024 bytes, and a longer line in pieces of exactly 1024 and a
rest, each with its own label and newline, with pieces of other tasks in between (Slurm 22.05 to 26.05:
``_task_build_message`` in slurmstepd/io.c, ``write_labelled_message``). They are joined per task, and
before decoding, as the cut may fall inside a character. A line of exactly 1024 bytes is followed by an
empty piece, so it is whole too (seen on 22.05). Two cuts leave no trace and cannot be joined: those of
``srun --unbuffered``, which sends whatever it has read, and those in the last 4 KiB of a task that
ended while slurmstepd had no free buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from clusterrun.logs.bars import BLANK, Bars, as_returns, count, first_state, last_state
from clusterrun.logs.files import Stream

PIECE = 1024
"""The size of a piece in bytes, without label (SLURM_IO_MAX_MSG_LEN)."""
LINE_CAP = 256 * 1024
"""Bytes kept of one line; the rest are counted and dropped."""
HELD_CAP = 16 * 1024 * 1024
"""Bytes kept of all unfinished lines of one file."""
_LABEL_CAP = 12  # the longest label is "4294967294: "
_LABELS_KEPT = 65_536
_SEARCHED = 16  # labels that are searched in a block; with more, reading the block is faster


class LogLine(NamedTuple):
    """One line of a log. ``rank`` is its srun label (the task); None for lines of the batch script and Slurm.

    ``text`` has no label and no newline, and must not be printed without ``safe_text``. ``cut`` is the
    number of bytes left out after it. ``label``
    is the rank as it is in the file, with blanks.
    """

    # a tuple: building one takes half the time of a frozen dataclass, and there are millions
    stream: Stream
    rank: int | None
    text: str
    cut: int = 0
    label: str = ""


#: an unfinished line: the bytes kept, the number dropped, its label, the first state of a bar that it draws
_Held = tuple[bytearray, int, str, bytes]
#: whether a line passes; None: all pass, at no cost
Match = Callable[[LogLine], bool] | None


class LineReader:
    """Turns the bytes of one file, in blocks of any size, into LogLines; a progress bar into its last state.

    With ``world_size``, a number is a label only if srun could have written it: as wide as the largest
    rank, and below the world size. Without it, any ``N: `` is one. With ``ranks``, lines of other ranks
    and lines without a label are left out early. Of the rest, the lines that ``match`` passes are returned.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        world_size: int | None = None,
        ranks: Collection[int] | None = None,
        match: Match = None,
    ) -> None:
        self._stream = stream
        self.match = match
        self._world_size = world_size
        self._width = len(str(world_size - 1)) if world_size else None
        self._wanted = None if ranks is None else frozenset(ranks)
        self._ranks: dict[str, int] = {}  # label field -> rank, for the labels seen ...
        self._labels: dict[bytes, tuple[int, str]] = {}  # ... and for their bytes
        self._tail = b""  # the line without its newline yet
        self._tail_lost = 0
        self._tail_first = b""  # of a shortened tail: the first state of its bar
        self._held: dict[int, _Held] = {}  # rank -> its whole pieces so far
        self._held_bytes = 0
        self._bars: Bars[LogLine] = Bars()

    def waits_for(self, block: bytes) -> bool:
        """Whether a line of this block could complete an unfinished one, or follow a held progress bar."""
        if self._tail:
            return True
        if not self._held and not self._bars:
            return False
        labels = {label for _, _, label, _ in self._held.values()} | {line.label for line in self._bars.lines()}
        if self._world_size is None or "" in labels or len(labels) > _SEARCHED:
            return True  # the label may have another width, or none, or the search is too slow
        wanted = [f"{label}: ".encode() for label in labels]
        return any(block.startswith(label) or b"\n" + label in block for label in wanted)

    @property
    def in_line(self) -> bool:
        """Whether the last line is unfinished."""
        return bool(self._tail)

    def feed(self, data: bytes) -> list[LogLine]:
        """Return the lines that these bytes complete; an unfinished last line waits for the next call."""
        lines = self._feed(data)
        return lines if self.match is None else list(filter(self.match, lines))

    def join(self, block: bytes) -> list[bytes | LogLine]:
        """``feed`` for whole lines of the selected ranks; lines that only need joining stay bytes, with labels."""
        if self._width is None or self._tail or self.match is not None or None in self._bars:
            return [*self.feed(block)]
        skip = self._width + len(": ")
        piece, returns = skip + PIECE, _draws(block)
        growing = {  # the held lines that only need their next pieces
            f"{label}: ".encode(): before
            for before, lost, label, _ in self._held.values()
            if not lost and b"\r" not in before
        }
        hard = {f"{label}: ".encode() for _, _, label, _ in self._held.values()} - growing.keys()
        hard |= {f"{line.label}: ".encode() for line in self._bars.lines()}
        found: list[bytes | LogLine] = []
        easy: list[bytes] = []
        loose = False  # whether a bar without a label is held: any line without one may end it
        raws = block[:-1].split(b"\n")
        for at, raw in enumerate(raws):
            label, length = raw[:skip], len(raw)
            before = growing.get(label)
            if not (loose or label in hard or (returns and _draws(raw))):
                if length == piece:
                    if before is not None and len(before) <= LINE_CAP - PIECE and self._held_bytes <= HELD_CAP - PIECE:
                        before += raw[skip:]
                        self._held_bytes += PIECE
                        continue
                elif before is None:
                    if length <= LINE_CAP:
                        easy.append(raw)
                        continue
                elif len(before) + length <= LINE_CAP:
                    easy.append(b"".join((label, before, raw[skip:])))
                    del growing[label]
                    self._release(self._labels[raw[: self._width]][0])
                    continue
            if loose or self._held_bytes > HELD_CAP - PIECE:  # this line may affect another one
                return [*found, *_together(easy), *self.feed(b"\n".join((*raws[at:], b"")))]
            lines: list[LogLine] = []
            self._add(lines, raw, 0, b"")
            if lines:
                found += [*_together(easy), *lines]
                easy.clear()
            rank = self.split(raw)[0]
            held = self._held.get(rank) if rank is not None else None
            loose = None in self._bars
            growing.pop(label, None)
            if rank in self._bars or (held and (held[1] or b"\r" in held[0])):
                hard.add(label)
            elif held:
                growing[label] = held[0]
        return found + _together(easy)

    def skip(self, data: bytes) -> None:
        """Take bytes before the offset where reading begins; none of their lines is returned, nor a bar drawn there."""
        self.feed(data)
        self._bars.late(0.0)

    def late(self, now: float) -> list[LogLine]:
        """Return states of progress bars to show before their last one; ``now`` in seconds of any clock."""
        return list(filter(self.match, self._bars.late(now))) if self._bars else []

    def end(self) -> list[LogLine]:
        """Return the unfinished lines: each task's held pieces, a last line without its newline, and bars."""
        lines: list[LogLine] = []
        if self._tail:
            self._add(lines, self._tail, self._tail_lost, self._tail_first)
            self._tail, self._tail_lost, self._tail_first = b"", 0, b""
        for rank in list(self._held):
            self._give(lines, rank, *self._release(rank))
        return list(filter(self.match, lines + self._bars.end()))

    def split(self, raw: bytes) -> tuple[int | None, str, bytes]:
        """Return (rank, label, the rest) of a raw line."""
        end = raw.find(b": ", 0, _LABEL_CAP)
        if end <= 0:
            return None, "", raw
        found = self._labels.get(raw[:end])
        if found is None:
            label = raw[:end].decode("latin-1")
            rank = self._rank(label)
            if rank is None:
                return None, "", raw
            found = rank, label
            if len(self._labels) < _LABELS_KEPT:
                self._labels[raw[:end]] = found
        return (*found, raw[end + 2 :])

    def single(self, raw: bytes) -> LogLine:
        """Return the LogLine of a raw line that is no piece."""
        rank, label, payload = self.split(raw)
        return LogLine(self._stream, rank, payload.decode("utf-8", "replace"), label=label)

    def _feed(self, data: bytes) -> list[LogLine]:
        last = data.rfind(b"\n")
        if last < 0:
            self._tail, self._tail_lost = self._shorten(self._tail + data, self._tail_lost)
            return []
        block = self._tail + data[:last]
        lost, self._tail_lost, self._tail = self._tail_lost, 0, data[last + 1 :]
        first, self._tail_first = self._tail_first, b""
        raws = block.split(b"\n")
        easy = not (self._held or lost or self._bars or _draws(block)) and max(map(len, raws)) < PIECE
        if easy and self._wanted is None:
            # Nothing to join, cut or replace: decode the block at once. Replacing a byte never removes
            # a newline, so the lines are the same as if each were decoded alone.
            return self._plain(block.decode("utf-8", "replace"))
        lines: list[LogLine] = []
        for raw in raws:
            self._add(lines, raw, lost, first)
            lost, first = 0, b""
        return lines

    def _plain(self, text: str) -> list[LogLine]:
        stream, ranks, make = self._stream, self._ranks, tuple.__new__  # locals, as this is the hot loop
        lines: list[LogLine] = []
        for line in text.split("\n"):
            end = line.find(": ", 0, _LABEL_CAP)
            if end > 0:
                label = line[:end]
                rank = ranks.get(label)
                if rank is None:
                    rank = self._rank(label)
                if rank is not None:
                    lines.append(make(LogLine, (stream, rank, line[end + 2 :], 0, label)))
                    continue
            lines.append(make(LogLine, (stream, None, line, 0, "")))
        return lines

    def _add(self, lines: list[LogLine], raw: bytes, lost: int, first: bytes) -> None:
        rank, label, payload = self.split(raw)
        if self._wanted is not None and rank not in self._wanted:
            return
        payload = as_returns(payload)
        if payload[:1] == b"\r" and not first:
            first = first_state(payload)
        if rank is not None:
            whole_piece = len(payload) == PIECE
            if rank in self._held:
                if whole_piece and self._grow(lines, rank, payload, lost):
                    return
                before, lost_before, _, first = self._release(rank)
                payload, lost = before + payload, lost + lost_before
            if whole_piece:
                payload, lost = _squeeze(payload, lost)
                self._held[rank] = bytearray(payload), lost, label, first
                self._held_bytes += len(payload)
                self._bound(lines)
                return
            if not (lost or self._bars or len(payload) > LINE_CAP or b"\r" in payload):
                text = payload.decode("utf-8", "replace")
                lines.append(tuple.__new__(LogLine, (self._stream, rank, text, 0, label)))
                return  # nearly all lines: the same as below, faster
        self._give(lines, rank, payload, lost, label, first)

    def _grow(self, lines: list[LogLine], rank: int, payload: bytes, lost: int) -> bool:
        """Append a piece to a held line, unless it draws a bar; the bytes of a very long line are only counted."""
        before, lost_before, label, first = self._held[rank]
        if b"\r" in payload or before.rfind(b"\r") > 0:
            return False
        room = max(0, LINE_CAP - len(before))
        before += payload[:room]
        lost += lost_before + max(0, len(payload) - room)
        self._held[rank] = before, lost, label, first
        self._held_bytes += min(room, len(payload))
        self._bound(lines)
        return True

    def _bound(self, lines: list[LogLine]) -> None:
        while self._held_bytes > HELD_CAP:  # thousands of long lines at once: return the oldest unfinished
            oldest = next(iter(self._held))
            self._give(lines, oldest, *self._release(oldest))

    def _release(self, rank: int) -> tuple[bytes, int, str, bytes]:
        payload, lost, label, first = self._held.pop(rank)
        self._held_bytes -= len(payload)
        return bytes(payload), lost, label, first

    def _give(
        self, lines: list[LogLine], rank: int | None, payload: bytes, lost: int, label: str, first: bytes
    ) -> None:
        payload, lost = _squeeze(payload, lost)
        text = payload.decode("utf-8", "replace")
        drawn = rank in self._bars
        if "\r" in text:
            begins, text = text[0] == "\r", last_state(text)
            if (begins and count(text) is not None) or (drawn and not text):
                line = LogLine(self._stream, rank, text, lost, label)
                lines += self._bars.draw(rank, first.decode("utf-8", "replace"), text, line)
                return
        if drawn:
            lines += self._bars.finish(rank)
        line = tuple.__new__(LogLine, (self._stream, rank, text, lost, label))
        if payload or not drawn:  # an empty line after a bar is only the bar's newline
            lines.append(line)

    def _shorten(self, raw: bytes, lost: int) -> tuple[bytes, int]:
        """Return an unfinished line within bounds, with its label."""
        if len(raw) <= LINE_CAP + _LABEL_CAP:
            return raw, lost
        rank, _, payload = self.split(raw)
        label = raw[: len(raw) - len(payload)] if rank is not None else b""
        self._tail_first = self._tail_first or first_state(as_returns(payload))
        payload, lost = _squeeze(payload, lost)
        return label + payload, lost

    def _rank(self, label: str) -> int | None:
        """Return the rank of a label, None if srun would not write it."""
        digits = label.lstrip(" ")
        if not (digits.isascii() and digits.isdigit()) or (digits[0] == "0" and digits != "0"):
            return None
        rank = int(digits)
        if self._world_size is not None and (rank >= self._world_size or len(label) != self._width):
            return None
        if len(self._ranks) < _LABELS_KEPT:
            self._ranks[label] = rank
        return rank


def _draws(data: bytes) -> bool:
    """Return whether these bytes may draw a progress bar."""
    return b"\r" in data or b"\b" in data


def _together(lines: list[bytes]) -> list[bytes | LogLine]:
    return [b"\n".join(lines) + b"\n"] if lines else []


def _squeeze(payload: bytes, lost: int) -> tuple[bytes, int]:
    """Return an unfinished line within bounds: the newest state of a progress bar, or the start of a long line.

    A state keeps the carriage return before it; blanks after it keep one too, so that the next state is separate.
    """
    payload = as_returns(payload)
    if b"\r" in payload:
        shown = payload.rstrip(BLANK.encode())
        start, end = shown.rfind(b"\r"), payload.find(b"\r", len(shown))
        if start > 0:
            lost = 0  # the dropped bytes were an earlier state
        start = max(start, 0)
        payload = payload[start:] if end < 0 else shown[start:] + payload[payload.rfind(b"\r") :]
    if len(payload) > LINE_CAP:
        lost += len(payload) - LINE_CAP
        payload = payload[:LINE_CAP]
    return payload, lost
