"""What takes several lines to say: Python's tracebacks, and torchrun's summary of the first failure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from clusterrun.why.causes.frames import find_place, is_own, is_web_library
from clusterrun.why.causes.model import Line

_READER_GONE = frozenset(("BrokenPipeError", "ConnectionResetError"))
_HEADER = re.compile(r"Traceback \(most recent call last\)(?::| ─)")
SUMMARY = "Root Cause (first observed failure):"
_PREFIX = re.compile(
    r"^(?:(?:\[?(?:rank|default|RANK) ?(?P<rank>\d+)\]?:\s?)+|[^\[\]]{1,64}?\[rank(?P<late>\d+)\]:\s?"
    r"|(?:\d{4}-\d\d-\d\dT[\d:.]{8,20}Z?:? )?\[\d+,(?:mpirank:)?(?P<mpi>\d+)[^\]]{0,64}\]<std(?:err|out)>:)"
)  # the second after a time or a host's name, the third mpirun's
_FRAME = re.compile(r'\s*File "(?P<file>.+?)", line (?P<line>\d+)|\s*│ (?P<boxed>/[^:│]+):(?P<number>\d+) in ')
_HEADLESS = re.compile(r'\s*File ".+?", line \d+(?:, in \S|$)')  # not faulthandler's, which has no comma
_BOX = "╭╰│"  # rich draws its tracebacks in one
_BOXED_SOURCE = re.compile(r"\s*│ ❱ +\d+ (?:│ +)*(?P<source>.*?) *│?$")
_AN_ERROR = re.compile(
    r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Failure|Interrupt|Iteration|Timeout|Expired|Warning)$"
    r"|(?:\w+\.)+(?:\w*error|timeout|Error)$"
)
_RAISED = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?::(?:\s(?P<message>.*))?)?$", re.DOTALL)
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_HANDED_ON = re.compile(r"-- Process \d+ terminated with the following error:")  # torch.multiprocessing.spawn's word
#: what stands before a traceback that ends nothing
_HARMLESS = ("Exception ignored in", "Error in atexit", "--- Logging error ---", "Exception ignored when")
_LONGEST = 2_000  # lines between a header and its last line, others' lines among them: then it is given up
_MESSAGE_LINES = 8  # a message may go on over several lines
#: what is no part of the message before it
_ANOTHER = re.compile(
    r"(?:[a-z_]\w*\.)+[A-Z]\w*(?:Error|Exception): |srun: |slurmstepd|terminate called|\s+what\(\):|wandb: "
    r"|(?:Aborted|Killed|Segmentation fault|Terminated|ERROR|WARNING|INFO|CRITICAL)\b|Exception ignored"
    r"|\S+: line \d+: |-{20}|mpirun |\[?\d{4}-\d\d-\d\d|\[[WEFI]\d*[ \]]|[WEFI]\d{4} "
)


@dataclass(slots=True)
class Raised:
    """One exception, or a chain of them: ``index`` of its last line among the lines, where it began and ends.

    ``place`` is file:line of the innermost frame in the user's own code, of the last of a chain; where a module of a
    library was started, of the innermost frame in that library. ``cause`` is the exception that it was raised from.
    """

    rank: int | None
    first: int
    index: int = -1
    end: int = -1
    name: str = ""
    message: str = ""
    place: str = ""
    harmless: bool = False
    cause: str = ""
    threaded: bool = False  # whether a thread raised it: the program went on
    online: bool = False  # whether a frame of it is in a library that asks the web
    continues: bool = True  # whether a line after it may still belong to its message
    message_follows: bool = False  # whether its message begins on a line after it
    headless: bool = False  # whether the line that opens a traceback is missing
    _prefix: re.Pattern[str] | None = None  # what stands before each of its lines, where something does
    _frames: list[tuple[str, str]] = field(default_factory=list)
    _indent: int = 0  # of all its lines, as where a launcher shows it as part of its own
    _source: str = ""  # of the innermost frame

    @property
    def text(self) -> str:
        if not self.message and self._source.startswith("assert "):
            return f"{self.name}: {self._source}"
        return f"{self.name}: {self.message}" if self.message else self.name


@dataclass(frozen=True, slots=True)
class Summary:
    """torchrun's own word on the first failure: which rank, where, with what exit code (negative: a signal)."""

    index: int
    rank: int | None
    host: str
    code: int | None


def split_rank(line: Line) -> tuple[int | None, str]:
    """A line's rank and text, the prefix that torch and torchrun put before it taken off."""
    prefix = _PREFIX.match(line.text)
    if prefix is None:
        return line.rank, line.text
    return int(prefix["rank"] or prefix["late"] or prefix["mpi"]), line.text[prefix.end() :]


def find_tracebacks(lines: Sequence[Line]) -> list[Raised]:
    """The tracebacks in the lines of one file, in the order in which they end; each rank's lines by themselves."""
    done: list[Raised] = []
    open_: dict[int | None, Raised] = {}
    ended: dict[int | None, Raised] = {}  # the last one of each rank: what may go on as a chain
    before: dict[int | None, str] = {}
    for index, line in enumerate(lines):
        if not open_ and not ended and "Traceback (most" not in line.text and 'File "' not in line.text:
            before[line.rank] = line.text
            continue
        rank, text = split_rank(line)
        current = open_.get(rank)
        opened = _opened(index, rank, text, current, ended.get(rank), before.get(rank, ""))
        if opened is not None:
            open_[rank] = opened
        elif current is not None:
            if current.headless and text.strip() and text[0] not in " \t" and not _is_error(text):
                del open_[rank]
            elif _read_line(current, index, text):
                done.append(current)
                ended[rank] = open_.pop(rank)
            elif index - current.first > _LONGEST:
                del open_[rank]
        elif rank in ended and text.strip():
            last = ended[rank]
            if _chains(text):
                before[rank] = text.strip()
                continue
            _continue_message(last, index, text)
        if text.strip():
            before[rank] = text
    return _last_of_chains(done)


def _chains(text: str) -> bool:
    """Whether a line says that the traceback after it belongs to the one before it."""
    return text.strip() in _CHAINED or _HANDED_ON.match(text.strip()) is not None


def _opened(
    index: int, rank: int | None, text: str, current: Raised | None, last: Raised | None, before: str
) -> Raised | None:
    """The traceback that a line opens, None where it opens none."""
    header = _HEADER.search(text)
    if header is None:
        if current is not None or _HEADLESS.match(text) is None:
            return None
        raised = _begin(rank, index, None, "")
        raised.headless = True
        _read_line(raised, index, text)
        return raised
    if current is None or current._frames:
        chained = _chains(before) or text[: header.start()].endswith("Original ")  # a data-loading worker's
        current = _begin(rank, index, last if chained else None, before)
    current._prefix = _prefix(text[: header.start()].removesuffix("Original "))
    return current


def _continue_message(last: Raised, index: int, text: str) -> None:
    """Take a line after a traceback that may belong to its message."""
    if index - last.index > _MESSAGE_LINES:
        return
    last.continues = last.continues and _ANOTHER.match(text) is None
    last.end = index if last.continues else last.end
    if last.message_follows and last.continues and text.strip("*-= \t"):
        last.message, last.message_follows = f"{last.message} {text.strip()}".strip(), False


def _begin(rank: int | None, index: int, last: Raised | None, before: str) -> Raised:
    raised = Raised(rank=rank, first=index, harmless=before.strip().startswith(_HARMLESS))
    raised.threaded = before.startswith("Exception in thread ")
    if last is not None:
        raised.first, raised.harmless, raised.online = last.first, last.harmless, last.online
        raised.cause = (last.cause or last.text) if before.strip() == _CHAINED[1] else ""
    return raised


def _prefix(text: str) -> re.Pattern[str] | None:
    """What stands before each line of a traceback (a time, a container's name): the same, but for its digits."""
    text = text.rstrip("╭─ ") + " " * text.endswith(" ") if "╭" in text else text
    if not text.strip() or len(text) > 200:
        return None
    return re.compile(r"\d+".join(re.escape(part) for part in re.split(r"\d+", text)))


def _is_error(text: str) -> bool:
    match = _RAISED.match(text)
    return match is not None and _AN_ERROR.match(match["name"]) is not None


def _read_line(raised: Raised, index: int, text: str) -> bool:
    """Take one line of a traceback; tells whether it was the last."""
    if raised._prefix is not None:
        before = raised._prefix.match(text)
        if before is not None:
            text = text[before.end() :]
        elif not raised._frames:
            raised._prefix = None
    if raised._indent and not text[: raised._indent].strip():
        text = text[raised._indent :]
    frame = _FRAME.match(text)
    if frame is not None:
        if not raised._frames and frame["file"]:
            raised._indent = max(0, len(text) - len(text.lstrip()) - 2)
        raised._frames.append((frame["file"] or frame["boxed"], frame["line"] or frame["number"]))
        raised._source = ""
        raised.online = raised.online or is_web_library(raised._frames[-1][0])
        return False
    if not raised._frames or not text.strip() or text[0] in " \t|+" or text.lstrip()[0] in _BOX:
        boxed = _BOXED_SOURCE.match(text[:500])
        raised._source = boxed["source"].strip() if boxed else raised._source or text.strip()
        return False
    match = _RAISED.match(text)
    if match is None:
        return False  # another's line in between
    raised.name, raised.message = match["name"], (match["message"] or "").strip()
    raised.message_follows = text.rstrip().endswith(":")
    if raised.name in _READER_GONE and raised._frames[0][0].endswith("multiprocessing/queues.py"):
        raised.harmless = True  # the queue's own thread: it prints this, and the process goes on
    raised.place, raised.index, raised.end = find_place(raised._frames), index, index
    return True


def _last_of_chains(done: list[Raised]) -> list[Raised]:
    """Only the last of each chain: what the program ended with; its range covers the others."""
    by_start: dict[tuple[int | None, int], Raised] = {}
    for raised in done:
        by_start[raised.rank, raised.first] = raised
    return sorted(by_start.values(), key=lambda raised: raised.index)


def find_crash_place(lines: Sequence[Line], index: int) -> str:
    """file:line in the user's code of the stack that faulthandler writes after a fatal error, innermost first."""
    rank = split_rank(lines[index])[0]
    stack = [text for line in lines[index + 1 : index + 500] for who, text in [split_rank(line)] if who == rank]
    begin = next((n for n, text in enumerate(stack) if text.startswith("Current thread")), 0)  # others come before it
    frames = [frame for text in stack[begin:] if (frame := _FRAME.match(text)) is not None and frame["file"]]
    own = [frame for frame in frames if is_own(frame["file"])]
    return f"{own[0]['file']}:{own[0]['line']}" if own else ""


def find_summaries(lines: Sequence[Line]) -> Iterator[Summary]:
    """torchrun's summaries in the lines of one file."""
    for index, line in enumerate(lines):
        if SUMMARY not in line.text:
            continue
        values: dict[str, str] = {}
        for later in lines[index + 1 : index + 40]:
            if later.rank != line.rank:
                continue
            key, colon, value = split_rank(later)[1].partition(":")
            if colon and key.strip() in ("host", "rank", "exitcode"):
                values.setdefault(key.strip(), value.strip())
            if len(values) == 3:
                break
        yield Summary(index, _leading(values.get("rank")), values.get("host", ""), _leading(values.get("exitcode")))


def _leading(text: str | None) -> int | None:
    match = re.match(r"-?\d+", text or "")
    return int(match[0]) if match else None
