"""Turn the bytes of one log file into lines: labels removed, srun's pieces joined, in bounded memory.

slurmstepd sends whole lines in messages of at most 1024 bytes, and a longer line in pieces of exactly 1024 and a rest,
each with its own label and newline, with pieces of other tasks in between (Slurm 22.05 to 26.05:
``_task_build_message`` in slurmstepd/io.c, ``write_labelled_message``). They are joined per task, before decoding, as
the cut may fall inside a character. A line of exactly 1024 bytes is followed by an empty piece, so it is whole too
(seen on 22.05). Two cuts leave no trace and cannot be joined: those of ``srun --unbuffered``, which sends whatever it
has read, and those in the last 4 KiB of a task that ended while slurmstepd had no free buffer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from clusterrun.logs.files import Stream
from clusterrun.logs.filters import Filter, choose_ranks
from clusterrun.logs.labels import LABEL_CAP, Labels, LogLine

EVERY = 60.0
"""Seconds between the printed states of one task's bar while a log is followed."""
SETTLED = 1.0
"""Seconds after which the state of a bar that is done is printed, if its task writes nothing."""
BARS_CAP = 4 * 1024 * 1024
"""Bytes kept of all held states."""
BLANK = b" \t\r"
"""Bytes that wipe a line, or are invisible at its end."""
_TASKS_CAP = 65_536
_CUT = 3  # bytes: so many backspaces may be the beginning of a longer run
_BACK = re.compile(rb"(?<=\r)\x08+|\x08{4,}")
#: To the line above, where a bar around this one is; and the wiping of a line.
_MOVES = re.compile(rb"\x1b\[\d{0,3}[AK]")
_FIRST = 400  # bytes of a line in which its first state is looked for
_COUNTS = tuple(
    re.compile(pattern) for pattern in (rb"(\d{1,15})%", rb"(\d{1,15})it\b", rb"(\d{1,15})/\d", rb"(\d{1,15})")
)
_WIPE = re.compile(rb"\r[ \t]+\r\Z")
_WIPED = b"\r \r"
_COUNTED_IN = 400  # bytes of a state that are searched for its count


class Bars:
    """The newest state of the bar that each task draws, as a line: of thousands the last, and some on the way.

    A program draws a bar by writing ``\\r`` (or a backspace for each character) and the new state, without a newline.
    srun sends such a line in pieces of 1,024 bytes, and the rest when it ends; ``srun --unbuffered`` passes each write
    on with its own label, so a bar of 10,000 updates is 10,000 lines in the file (both seen on 22.05). So a state is
    held until its task writes another line. The next state replaces it, except the first one of a new bar, which shows
    as a smaller count.
    """

    def __init__(self) -> None:
        self._states: dict[int | None, _State] = {}  # oldest first
        self._unfinished: _State | None = None  # of the line that is being written
        self._size = 0
        self._shown_at: dict[int | None, float] = {}

    def __bool__(self) -> bool:
        return bool(self._states)

    def __contains__(self, task: int | None) -> bool:
        return task in self._states

    def draw(self, first: bytes, line: LogLine) -> list[LogLine]:
        """Take a new state and the ``first`` one of its line; return the last state of a bar that this one ends."""
        line = _without_moves(line)
        ended = self._finish_if_new(first, line.rank)
        if not line.payload:
            return ended  # a bar that wipes itself keeps its last state
        if line.rank in self._states:
            self._drop(line.rank)
        self._states[line.rank] = self._state(line)
        self._size += len(line.payload)
        while self._size > BARS_CAP or len(self._states) > _TASKS_CAP:
            ended += self.finish(next(iter(self._states)))
        return ended

    def sketch(self, first: bytes, line: LogLine) -> list[LogLine]:
        """Take a new state of the line that is being written, to be shown only until ``wipe``; return as ``draw`` does.

        What is printed of this line depends on all of it, and not on where its parts happened to end.
        """
        self._unfinished = self._state(_without_moves(line))
        return self._finish_if_new(first, line.rank)

    def wipe(self) -> None:
        """Forget the state of the line that was being written."""
        self._unfinished = None

    def finish(self, task: int | None) -> list[LogLine]:
        """Return the last state of this task's bar if it was not shown: the task wrote another line."""
        if task not in self._states:
            return []
        state = self._drop(task)
        return [] if state.is_shown else [state.line]

    def _finish_if_new(self, first: bytes, task: int | None) -> list[LogLine]:
        """Return what ``finish`` does if a line with this first state begins a new bar."""
        before = self._states.get(task)
        return self.finish(task) if before is not None and _fell(before.line.payload, first) else []

    def end(self) -> list[LogLine]:
        """Return all held states that were not shown."""
        return [line for task in list(self._states) for line in self.finish(task)]

    def late(self, now: float, *, are_live: bool = False) -> list[LogLine]:
        """Return the states to print now: the last of a bar that is done; of others the first, and one in EVERY s.

        ``are_live``: only the last ones, as the others are shown by ``now``.
        """
        lines = []
        for task, state in self._newest().items():
            is_due = not are_live and now - self._shown_at.get(task, -math.inf) >= EVERY
            if not state.is_shown and (is_due or state.is_settled(now)):
                state.is_shown = self._states.get(task, state).is_shown = True
                if len(self._shown_at) > _TASKS_CAP:
                    self._shown_at.clear()
                self._shown_at[task] = now
                lines.append(state.line)
        return lines

    def now(self) -> list[LogLine]:
        """Return the newest state of each task's bar, unless it was printed."""
        return [state.line for state in self._newest().values() if not state.is_shown]

    def _state(self, line: LogLine) -> _State:
        """Return the sketched state if it shows this line, as it may have been printed; otherwise a new one."""
        sketched = self._unfinished
        return sketched if sketched is not None and sketched.line == line else _State(line)

    def _newest(self) -> dict[int | None, _State]:
        if self._unfinished is None:
            return self._states
        return {**self._states, self._unfinished.line.rank: self._unfinished}

    def _drop(self, task: int | None) -> _State:
        state = self._states.pop(task)
        self._size -= len(state.line.payload)
        return state


@dataclass
class _State:
    """A state of a bar, whether it was printed, and when ``late`` first saw that its bar is done."""

    line: LogLine
    is_shown: bool = False
    done_since: float | None = None

    def is_settled(self, now: float) -> bool:
        if b"100%" not in self.line.payload[:_COUNTED_IN]:
            return False
        if self.done_since is None:
            self.done_since = now
        return now - self.done_since >= SETTLED


def _without_moves(line: LogLine) -> LogLine:
    return line._replace(payload=_MOVES.sub(b"", line.payload).rstrip(BLANK))


def draws(data: bytes) -> bool:
    """Return whether these bytes may draw a progress bar."""
    return b"\r" in data or b"\b" in data


def as_returns(data: bytes) -> bytes:
    """Return bytes of the same length with carriage returns for backspaces that go back to the start of a bar.

    Keras and others go back so, by as many backspaces as the bar is long. Fewer than four are an underlined letter, or
    a wheel that turns, unless they are the rest of a run that was cut.
    """
    return _BACK.sub(lambda run: b"\r" * len(run[0]), data) if b"\b" in data else data


def last_state(payload: bytes) -> bytes:
    """Return the last visible state of a progress line, without the blanks that wipe it."""
    shown = payload.rstrip(BLANK)
    return shown[shown.rfind(b"\r") + 1 :]


def first_state(payload: bytes) -> bytes:
    """Return the first state of a line that begins with a carriage return: others may be parts of several bars."""
    return _MOVES.sub(b"", payload).lstrip(b"\r").partition(b"\r")[0] if payload[:1] == b"\r" else b""


def from_last_state(payload: bytes) -> tuple[bytes, bool]:
    """Return an unfinished progress line without its earlier states, and whether it had any.

    A state keeps the carriage return before it, with a blank if the line was wiped for it; blanks after it keep the
    same of theirs, so that the next state is separate.
    """
    shown = payload.rstrip(BLANK)
    start = max(0, shown.rfind(b"\r"))
    before, after = shown[:start].rstrip(BLANK), payload[len(shown) :]
    return _from_return(payload[len(before) : len(shown)]) + _from_return(after), bool(before)


def _from_return(state: bytes) -> bytes:
    start = max(0, state.rfind(b"\r"))
    return (_WIPED[:-1] if _WIPE.search(state[: start + 1]) else b"") + state[start:]


def is_bar(payload: bytes) -> bool:
    """Return whether a line shows the state of a bar, and not text that was written over the wiped bar.

    ``tqdm.write`` writes such text, and with it the Trainer of transformers. ``payload`` is as ``from_last_state``
    returns it.
    """
    is_state = payload.startswith(b"\r") and not payload.startswith(_WIPED)
    return is_state and count(last_state(payload)) is not None


def count(state: bytes) -> int | None:
    """Return the progress of a bar: its percentage, else its steps, else its first number, else None."""
    for pattern in _COUNTS:
        number = pattern.search(state, 0, _COUNTED_IN)
        if number is not None:
            return int(number[1])
    return None


def _fell(before: bytes, now: bytes) -> bool:
    was, is_now = count(before), count(now)
    return was is not None and is_now is not None and is_now < was


PIECE = 1024
"""The size of a piece in bytes, without label (SLURM_IO_MAX_MSG_LEN)."""
LINE_CAP = 256 * 1024
"""Bytes kept of one line; the rest are counted and dropped."""
HELD_CAP = 16 * 1024 * 1024
"""Bytes kept of all unfinished lines of one file."""

Chunk = bytes | LogLine
"""A line, or the bytes of whole lines that are as in the file, labels included: none is a piece or draws a bar."""


class LineReader:
    """Turns the bytes of one file, in blocks of any size, into lines; a progress bar into its last state.

    With ``ranks``, lines of other ranks and lines without a label are left out; of the rest, those that do not pass the
    ``filters``. ``world_size`` is that of ``Labels``.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        world_size: int | None = None,
        ranks: Collection[int] | None = None,
        filters: Sequence[Filter] = (),
    ) -> None:
        self.stream = stream
        self.labels = Labels(world_size)
        self._ranks, self._filters = ranks, filters
        self._choose = None if ranks is None else choose_ranks(ranks, self.labels)
        self._tail = b""  # the line without its newline yet ...
        self._long: _Unfinished | None = None  # ... if it is too long to be kept whole
        self._held: dict[int, _Unfinished] = {}  # the whole pieces of each rank's unfinished line
        self._held_bytes = 0
        self._bars = Bars()

    def feed(self, data: bytes) -> list[LogLine]:
        """Return the lines that these bytes complete; an unfinished last line waits for the next call."""
        return self._lines(self._read(data))

    def blocks(self, data: bytes) -> list[Chunk]:
        """Return ``feed`` with as many lines as possible left together in blocks, which is many times as fast."""
        return list(self._filtered(self._read(data)))

    def skip(self, data: bytes) -> None:
        """Take bytes before the offset where reading begins; none of their lines is returned, nor a bar drawn there."""
        self.blocks(data)
        self._bars.late(0.0)

    def late(self, now: float, *, are_live: bool = False) -> list[LogLine]:
        """Return states of progress bars to print before the next line of their task; see ``Bars.late``.

        ``now`` is in seconds of any clock.
        """
        return [line for line in self._bars.late(now, are_live=are_live) if self._passes(line)]

    def bars(self) -> list[LogLine]:
        """Return the newest whole state of the bar that each task draws now, to be shown and not printed."""
        return [line for line in self._bars.now() if self._passes(line)]

    def end(self) -> list[LogLine]:
        """Return the unfinished lines: each task's held pieces, a last line without its newline, and bars.

        Of a bar on an unfinished line this is the last whole state, and of one without a label also what is after it,
        which replaces that state if it counts on.
        """
        return self._lines(self._read_end())

    def _lines(self, chunks: Iterable[Chunk]) -> list[LogLine]:
        lines: list[LogLine] = []
        for chunk in self._filtered(chunks):
            lines += [chunk] if isinstance(chunk, LogLine) else self.labels.lines(self.stream, chunk)
        return lines

    def _read_end(self) -> Iterator[Chunk]:
        if self._long is not None:
            yield from self._draw(self._long)
        if self._tail or self._long is not None:
            yield from self._read(b"\n")
        for rank in list(self._held):
            yield from self._complete_cut(self._release(rank))
        yield from self._bars.end()

    def _read(self, data: bytes) -> Iterator[Chunk]:
        if self._long is not None:
            rest, newline, data = data.partition(b"\n")
            self._long.append(rest)
            if not newline:
                yield from self._sketch(self._long)
                return
            yield from self._complete(self._long)
            self._bars.wipe()
            self._long = None
        end = data.rfind(b"\n") + 1
        if end:
            block = b"".join((self._tail, memoryview(data)[:end]))
            self._tail = data[end:]
            yield from self._read_block(block)
        else:
            self._tail += data
        if len(self._tail) > LINE_CAP + LABEL_CAP or self._is_unlabelled_bar(self._tail):
            self._long = self._continued(self._tail)
            self._tail = b""
            yield from self._sketch(self._long)

    def _is_unlabelled_bar(self, tail: bytes) -> bool:
        """Return whether this unfinished line draws a bar and is no piece of srun, which has a label."""
        return len(tail) >= LABEL_CAP and draws(tail) and self.labels.split(tail)[0] is None

    def _read_block(self, block: bytes) -> Iterator[Chunk]:
        """Yield the chunks of whole lines."""
        if self._choose is not None:
            block = self._choose(block)
        if self._is_plain_block(block):
            yield block
        elif block:
            yield from self._read_each(block[:-1].split(b"\n"))

    def _read_each(self, raws: Iterable[bytes]) -> Iterator[Chunk]:
        """Yield the chunks of lines; those that stay as they are remain together."""
        plain: list[bytes] = []
        for raw in raws:
            if self._is_plain(raw):
                plain.append(raw)
                continue
            lines = self._add(raw)
            if lines and plain:
                yield _joined(plain)
                plain.clear()
            yield from lines
        if plain:
            yield _joined(plain)

    def _is_plain_block(self, block: bytes) -> bool:
        """Return whether every line is plain, without a look at each."""
        return not (self._held or self._bars or draws(block)) and _are_short(block)

    def _is_plain(self, raw: bytes) -> bool:
        """Return whether a line is no piece, continues none, draws no progress bar and ends none."""
        if len(raw) >= _piece_length() or draws(raw):
            return False
        if not self._held and not self._bars:
            return True
        rank, _, _ = self.labels.split(raw)
        return rank not in self._held and rank not in self._bars

    def _add(self, raw: bytes) -> list[LogLine]:
        """Take a line of the file; return the lines that it completes."""
        line = self._continued(raw)
        if line.rank is None or len(raw) != len(line.label) + len(": ") + PIECE:
            return self._complete(line)
        self._held[line.rank] = line
        self._held_bytes += len(line.payload)
        lines: list[LogLine] = []
        while self._held_bytes > HELD_CAP:  # thousands of long lines at once: return the oldest unfinished
            lines += self._complete(self._release(next(iter(self._held))))
        return lines + self._draw(line)

    def _draw(self, line: _Unfinished) -> list[LogLine]:
        """Take the last whole state of a line; return the last one of a bar that it ends."""
        first, state = line.first, self._state(line)
        if state is None:
            return []
        line.first = line.state = b""  # the next states of this line end no bar
        return self._bars.draw(first, state)

    def _sketch(self, line: _Unfinished) -> list[LogLine]:
        """Show the last whole state of the file's last line; return the last one of a bar that it ends."""
        state = self._state(line)
        return [] if state is None else self._bars.sketch(line.first, state)

    def _state(self, line: _Unfinished) -> LogLine | None:
        """Return the last whole state of a line if it counts anything."""
        is_other = self._ranks is not None and line.rank not in self._ranks
        is_counted = not is_other and count(line.state) is not None
        return LogLine(self.stream, line.rank, line.state, 0, line.label) if is_counted else None

    def _continued(self, raw: bytes) -> _Unfinished:
        """Return the line that these bytes of the file begin, or continue if the task has pieces."""
        rank, label, payload = self.labels.split(raw)
        line = self._release(rank) if rank in self._held else _Unfinished(rank, label)
        line.append(payload)
        return line

    def _release(self, rank: int | None) -> _Unfinished:
        assert rank is not None
        line = self._held.pop(rank)
        self._held_bytes -= len(line.payload)
        return line

    def _complete(self, line: _Unfinished) -> list[LogLine]:
        """Return the lines to show now that this one is complete; a state of a bar waits for the next."""
        rank, payload = line.rank, bytes(line.payload)
        if self._ranks is not None and rank not in self._ranks:
            return []
        drawn = rank in self._bars
        if b"\r" in payload:
            is_state, payload = is_bar(payload), last_state(payload)
            if is_state or (drawn and not payload):
                return self._bars.draw(line.first, LogLine(self.stream, rank, payload, line.lost, line.label))
        ended = self._bars.finish(rank)
        if drawn and not payload:
            return ended  # an empty line after a bar is only the bar's newline
        return [*ended, LogLine(self.stream, rank, payload, line.lost, line.label)]

    def _complete_cut(self, line: _Unfinished) -> list[LogLine]:
        """Return the lines to show of one whose rest is missing; a bar keeps its last whole state."""
        is_known_bar = line.payload.startswith(b"\r") and line.rank in self._bars
        return [] if is_known_bar else self._complete(line)

    def _filtered(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            if isinstance(chunk, LogLine):
                if self._passes(chunk):
                    yield chunk
                continue
            for line_filter in self._filters:
                chunk = line_filter.select(chunk) if chunk else chunk  # noqa: PLW2901
            if chunk:
                yield chunk

    def _passes(self, line: LogLine) -> bool:
        return all(line_filter.passes(line) for line_filter in self._filters)


class _Unfinished:
    """A line that comes in parts: the bytes kept, the number dropped.

    If it draws a bar, the first state is kept, and the last state that a carriage return has ended.
    """

    def __init__(self, rank: int | None, label: bytes) -> None:
        self.rank, self.label = rank, label
        self.payload = bytearray()
        self.lost = 0
        self.first = self.state = b""
        self._head = b""  # the bytes of the first state
        self._is_returned = False  # the next visible byte begins another state

    def append(self, data: bytes) -> None:
        new = data[: _FIRST - len(self._head)]
        if new:
            self._head += new
            self.first = first_state(as_returns(self._head))
        if draws(data) or (self._is_returned and data.strip(BLANK)):
            # what is kept has been through this, all but a run of backspaces that was cut
            data = as_returns(bytes(self.payload[-_CUT:]) + data)
            del self.payload[-_CUT:]
            self.payload += data
            self._shorten_bar()
        else:
            self.payload += data
        excess = len(self.payload) - LINE_CAP
        if excess > 0:
            self.lost += excess
            del self.payload[LINE_CAP:]

    def _shorten_bar(self) -> None:
        payload = bytes(self.payload)
        if b"\r" not in payload:
            return
        whole, _ = from_last_state(payload[: payload.rfind(b"\r")])
        payload, had_earlier_states = from_last_state(payload)
        if whole.strip(BLANK):
            self.state = last_state(_MOVES.sub(b"", whole)) if is_bar(whole) else b""
        if had_earlier_states:
            self.lost = 0  # the dropped bytes were an earlier state
        self._is_returned = b"\r" in payload[len(payload.rstrip(BLANK)) :]
        self.payload[:] = payload


class RawReader:
    """Passes the bytes of one file; with ``ranks`` or ``filters``, only their lines.

    A line is as it is in the file: pieces of a long line are not joined, states of a bar not replaced.
    """

    def __init__(
        self, *, world_size: int | None = None, ranks: Collection[int] | None = None, filters: Sequence[Filter] = ()
    ) -> None:
        by_rank = [] if ranks is None else [choose_ranks(ranks, Labels(world_size))]
        self._selects = [*by_rank, *(line_filter.select for line_filter in filters)]
        self._tail = b""
        self._passing: bool | None = None  # of a line so long that only its beginning was filtered

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that these bytes complete, one by one."""
        return [line for block in self._read(data) for line in _each(block)]

    def blocks(self, data: bytes) -> list[bytes]:
        """Return the lines that these bytes complete, or the bytes themselves if no line is left out."""
        if self._selects:
            return list(self._read(data))
        data, self._tail = self._tail + data, b""
        return [data]

    def skip(self, data: bytes) -> None:
        """Take bytes before the offset where reading begins."""
        self.blocks(data)

    def late(self, _now: float, *, are_live: bool = False) -> list[bytes]:
        """Return nothing: no line waits here."""
        return []

    def bars(self) -> list[LogLine]:
        """Return nothing: all states of a bar are printed."""
        return []

    def end(self) -> list[bytes]:
        """Return the last line if it has no newline."""
        tail, self._tail = self._tail, b""
        return [tail] if tail and self._select(tail + b"\n") else []

    def _read(self, data: bytes) -> Iterator[bytes]:
        if self._passing is not None:
            end = data.find(b"\n") + 1 or len(data)
            if self._passing:
                yield data[:end]
            if data[end - 1 : end] == b"\n":
                self._passing = None
            data = data[end:]
        data = self._tail + data
        end = data.rfind(b"\n") + 1
        self._tail = data[end:]
        lines = self._select(data[:end])
        if lines:
            yield lines
        if len(self._tail) > LINE_CAP:
            self._passing = bool(self._select(self._tail + b"\n"))
            if self._passing:
                yield self._tail
            self._tail = b""

    def _select(self, lines: bytes) -> bytes:
        for select in self._selects:
            if lines:
                lines = select(lines)
        return lines


def _each(block: bytes) -> list[bytes]:
    """Return the lines of a block with their newlines; the last may have none."""
    *lines, rest = block.split(b"\n")
    return [line + b"\n" for line in lines] + [rest] * bool(rest)


def _joined(lines: list[bytes]) -> bytes:
    return b"\n".join(lines) + b"\n"


def _piece_length() -> int:
    """Return the length of the shortest piece with its label: shorter lines are none."""
    return len("0: ") + PIECE


def _are_short(block: bytes) -> bool:
    """Return whether no line can be a piece; searches newlines backwards in steps of the length of a piece."""
    at, step = 0, _piece_length()
    last = len(block) - step
    while at < last:
        at = block.rfind(b"\n", at, at + step) + 1
        if not at:
            return False
    return True
