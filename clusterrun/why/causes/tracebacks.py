"""Find Python's tracebacks, which span several lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from clusterrun.why.causes.frames import find_activity, find_package, find_place, format_origin, is_own, is_web_library
from clusterrun.why.causes.model import Line

_READER_GONE = frozenset(("BrokenPipeError", "ConnectionResetError"))
_HEADER = re.compile(r"Traceback \(most recent call(?: last|s WITHOUT Sacred internals)\)(?::| ─)")
_PREFIX = re.compile(
    r"^(?:(?:[^\[\]]{1,64}?\[default\d+\]:)?"
    r"(?:\[?(?:rank|default|RANK) ?(?P<rank>\d+)\]?:\s?)+"
    r"|[^\[\]]{1,64}?(?:\[std(?:err|out)\] )?\[rank(?P<late>\d+)\]:\s?"
    r"|(?:\d{4}-\d\d-\d\dT[\d:.]{8,20}Z?:? )?\[\d+,(?:mpirank:)?(?P<mpi>\d+)[^\]]{0,64}\]<std(?:err|out)>:)"
)  # the second follows a time or a host name, the third is mpirun's
_FRAME = re.compile(r'\s*File "(?P<file>.+?)", line (?P<line>\d+)|\s*│ (?P<boxed>/[^:│]+):(?P<number>\d+) in ')
_FRAMES = re.compile(r'(?m)^\s*File "(?P<file>.+?)", line (?P<line>\d+)')
_HEADLESS = re.compile(r'\s*File ".+?", line \d+(?:, in \S|$)')  # faulthandler's has no comma
_BOX = "╭╰│"  # around a traceback of rich
_BOXED_SOURCE = re.compile(r"\s*│ ❱ +\d+ (?:│ +)*(?P<source>.*?) *│?$")
_AN_ERROR = re.compile(
    r"(?:\w+\.)*(?:[A-Z]\w*(?:Error|Failed|Failure|Interrupt|Iteration|Timeout|Expired|Warning)|(?:[A-Z]\w*)?Exception)$"
    r"|(?:\w+\.)+(?:\w*error|timeout|Error)$"
    r"|(?:[a-z_]\w*\.)+[A-Z]\w*$"
)
_RAISED = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?::(?:\s(?P<message>.*))?)?$", re.DOTALL)
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
#: of torch.multiprocessing.spawn, and of OpenNMT
_HANDED_ON = re.compile(r"-- Process \d+ terminated with the following error:|(?:-- Tracebacks .*)?be ignored --$")
#: the line before a traceback that does not end the program
_HARMLESS = ("Exception ignored ", "Error in atexit", "--- Logging error ---", "Error in sys.excepthook")
_EXIT_BARRIER = "Error waiting on exit barrier"  # torchrun's, whose ranks have ended
#: the line before a traceback after which the program continues: of a thread, of an asyncio task
_ASIDE = ("Exception in thread ", "future: <Task ", "handle: <", "Task exception was never retrieved")
#: what programs catch in order to do something else: an error of that is not a consequence
_EXPECTED = frozenset(
    ("KeyError", "AttributeError", "IndexError", "ImportError", "ModuleNotFoundError", "StopIteration", "Empty",
     "FileNotFoundError", "FileExistsError", "KeyboardInterrupt", "SystemExit")
)  # fmt: skip
#: a process reads from another one, which has ended
_READS_PROCESS = re.compile(r"(?<!torch)/multiprocess(?:ing)?/(?:spawn|forkserver|connection|resource_sharer)\.py$")
#: a frame that a terminal wrapped: the rest is on the next line
_WRAPPED = re.compile(r'\s*File "[^"]*(?:",?(?: line ?)?)?$')
_VALIDATION = re.compile(r"\d+ validation errors? for ")  # pydantic names the field and what is wrong below
_REPEATED = re.compile(r" \[repeated \d+x across cluster\]")  # Ray, of a line
_LONGEST = 2_000  # lines of a traceback, with those of other ranks between them
_MESSAGE_LINES = 8  # lines of a message
_LISTED = 3  # lines of a list in a message that are repeated
#: a line that is not part of the message before it
_ANOTHER = re.compile(
    r"(?:[a-z_]\w*\.)+[A-Z]\w*(?:Error|Exception): |srun: |slurmstepd|terminate called|\s+what\(\):|wandb: "
    r"|(?:Aborted|Killed|Segmentation fault|Terminated|ERROR|WARNING|INFO|CRITICAL)\b|Exception ignored"
    r"|\S+: line \d+: |\S*python[\d.]*: |-{20}|mpirun |\[?\d{4}-\d\d-\d\d|\[[WEFI]\d*[ \]]|[WEFI]\d{4} "
)


@dataclass(slots=True)
class Raised:
    """One exception, or a chain of them: the indexes of its first line, of the line that names it, and of its end.

    ``place`` is file:line of the innermost frame in the user's code (of the last in a chain), or in the library whose
    module was started. ``cause`` is the exception that it was raised from.
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
    handled: str = ""  # the exception that was being handled when it was raised
    after: str = ""  # an exception that was raised while this one was handled, and only follows from it
    since: int = -1  # the last line of an exception that the program expected, and did something else then
    threaded: bool = False  # raised in a thread or a task: the program continued
    activity: str = ""  # what the program was doing
    online: bool = False  # a frame is in a library for requests to the internet
    continues: bool = True  # the next line may still belong to the message
    message_follows: bool = False  # the message begins on the next line
    headless: bool = False  # the header of the traceback is missing
    _prefix: re.Pattern[str] | None = None  # before each of its lines
    _frames: list[tuple[str, str]] = field(default_factory=list)
    _indent: int = 0  # of all its lines, as in the output of a launcher
    _width: int = 0  # of rich's box around it, at which the message is wrapped
    _room: int = 0  # columns left after the last line of a wrapped message
    _source: str = ""  # of the innermost frame
    _before: Raised | None = None  # the one that it is chained to
    _until: int = -1  # the last line of this exception, if ``after`` follows from it
    _remote: bool = False  # quoted from a worker process
    _of_syntax: bool = False  # the last frame names no function

    @property
    def text(self) -> str:
        if not self.message and self._source.startswith("assert "):
            return f"{self.name}: {self._source}"
        return f"{self.name}: {self.message}" if self.message else self.name

    @property
    def until(self) -> int:
        """The last line of this exception; lines of exceptions that it caused do not count."""
        return self._until if self.after else self.end

    @property
    def noticed(self) -> bool:
        """Whether it only notices that another process has ended."""
        lost_its_peer = self.name in (*_READER_GONE, "EOFError", "_pickle.UnpicklingError")
        return lost_its_peer and _READS_PROCESS.search(self._frames[-1][0]) is not None

    @property
    def in_semaphore(self) -> bool:
        """Whether multiprocessing was creating a semaphore."""
        return self._frames[-1][0].endswith("multiprocessing/synchronize.py")

    @property
    def origin(self) -> str:
        """Where a library raised it, if that is not the place."""
        return format_origin(self._frames[-1], self._source, self.place)


def split_rank(line: Line) -> tuple[int | None, str]:
    """Return a line's rank and text without the prefix of torch, torchrun or mpirun."""
    prefix = _PREFIX.match(line.text)
    if prefix is None:
        return line.rank, line.text
    return int(prefix["rank"] or prefix["late"] or prefix["mpi"]), line.text[prefix.end() :]


def texts_after(lines: Sequence[Line], index: int, near: int) -> Iterator[str]:
    """Yield the texts of the same rank's lines after a line, without prefix; ``near`` lines of any rank are read."""
    own = split_rank(lines[index])[0]
    for line in lines[index + 1 : index + near]:
        rank, text = split_rank(line)
        if rank == own:
            yield text


def find_tracebacks(lines: Sequence[Line]) -> list[Raised]:
    """Return the tracebacks in the lines of one file in the order of their ends; ranks are read separately."""
    if not any('File "' in line.text or "Traceback (most" in line.text for line in lines):
        return []
    done: list[Raised] = []
    readers: dict[int | None, _Reader] = {}
    for index, line in enumerate(lines):
        rank, text = split_rank(line)
        ended = readers.setdefault(rank, _Reader(rank)).read(index, text)
        if ended is not None:
            done.append(ended)
    return _last_of_chains(done)


class _Reader:
    """Reads the lines of one rank: the traceback that is open, the last one that ended, and the line before."""

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.open: Raised | None = None
        self.ended: Raised | None = None  # a chain may continue it
        self.before = ""
        self.wrapped = ""  # the first part of a frame that a terminal wrapped

    def read(self, index: int, text: str) -> Raised | None:
        """Read a line; return the traceback that ends with it, if any."""
        begun, self.wrapped = self.wrapped, ""
        text = f"{begun}{' ' * begun.endswith(',')}{text}"
        if self.open is not None and not begun and _WRAPPED.match(text):
            self.wrapped = text
            return None
        ended = self._read_whole(index, text)
        if text.strip():
            self.before = text
        return ended

    def _read_whole(self, index: int, text: str) -> Raised | None:
        header = _HEADER.search(text)
        if header is not None:
            self._open_by_header(index, text, header)
        elif self.open is not None:
            return self._continue(self.open, index, text)
        elif _HEADLESS.match(text):
            self.open = Raised(self.rank, index, headless=True)
            _read_line(self.open, index, text)
        elif self.ended is not None and text.strip() and not _chains(text):
            _continue_message(self.ended, index, text)
        return None

    def _open_by_header(self, index: int, text: str, header: re.Match[str]) -> None:
        """Start a traceback; if only the header of the last one was read, that one continues."""
        if self.open is None or self.open._frames:
            is_chained = _chains(self.before) or _is_quoted(text, header) or self._is_of_manager()
            self.open = _begin(self.rank, index, self.ended if is_chained else None, self.before.strip())
        self.open._prefix = _prefix(text[: header.start()].removesuffix("Original "))

    def _is_of_manager(self) -> bool:
        """Return whether a manager of multiprocessing quotes the traceback of its process, below a line of dashes."""
        last = self.ended
        return last is not None and last.name.endswith(".RemoteError") and not last.message

    def _continue(self, current: Raised, index: int, text: str) -> Raised | None:
        """Add a line to the open traceback; return it if the line was its last."""
        if current.headless and _leaves(current, index, text):
            self.open = None
        elif _read_line(current, index, text):
            self.open, self.ended = None, current
            return current
        elif index - current.first > _LONGEST:
            self.open = None
        return None


def _leaves(raised: Raised, index: int, text: str) -> bool:
    """Return whether a line ends a traceback without a header: it is not indented, no error, and no rejected code."""
    if not text.strip() or text[0] in " \t" or _is_error(text):
        return False
    return not raised._of_syntax or index - raised.first >= _MESSAGE_LINES


def _chains(text: str) -> bool:
    """Return whether a line chains the traceback after it to the one before it."""
    return text.strip() in _CHAINED or _HANDED_ON.match(text.strip()) is not None


def _is_quoted(text: str, header: re.Match[str]) -> bool:
    """Return whether a traceback is of a data-loading worker, or of a rank in torch's CheckpointException."""
    return text[: header.start()].endswith("Original ") or text[header.end() :].startswith(" (RANK ")


def _continue_message(last: Raised, index: int, text: str) -> None:
    """Add a line after a traceback to its message if it belongs to it."""
    if index - last.index > _MESSAGE_LINES:
        return
    last.continues = last.continues and _ANOTHER.match(text) is None
    if not last.continues:
        return
    last.end = index
    if last._width:
        _continue_wrapped(last, text)
    if text.startswith("- ") and index - last.index <= _LISTED:
        last.message, last.message_follows = f"{last.message} {text.strip()}", False
    if last.message_follows and text.strip("*-= \t"):
        last.message = f"{last.message} {_REPEATED.sub('', text).strip()}".strip()
        last.message_follows = _VALIDATION.match(last.message) is not None and "[type=" not in text


def _continue_wrapped(last: Raised, text: str) -> None:
    """Add a line to a message that rich wrapped, if its first word had no room on the line before."""
    if len(text.split(maxsplit=1)[0]) >= last._room:
        last.message, last._room = f"{last.message} {text.strip()}", last._width - len(text.rstrip())
    else:
        last._width = 0


def _begin(rank: int | None, index: int, last: Raised | None, before: str) -> Raised:
    """Return a new traceback. ``last`` is the previous one of the chain, ``before`` is the preceding line."""
    raised = Raised(rank, index, threaded=before.startswith(_ASIDE), _remote=before in ('"""', "'''"))
    raised.harmless = before.startswith(_HARMLESS) or _EXIT_BARRIER in before
    if last is None:
        return raised
    raised.first, raised.harmless, raised.online = last.first, last.harmless, last.online
    raised.place = last.place if _is_own_place(last.place) else ""
    if before in _CHAINED:
        raised._before = last
    if before == _CHAINED[0]:
        raised.handled = last.handled or last.text
    if before == _CHAINED[1]:
        raised.cause = last.cause or last.text
    return raised


def _is_own_place(place: str) -> bool:
    return is_own(place.rpartition(":")[0])


def _prefix(text: str) -> re.Pattern[str] | None:
    """Return a pattern for the prefix of a traceback's lines (a time, a container's name), with any digits."""
    text = text.rstrip("╭─ ") + " " * text.endswith(" ") if "╭" in text else text
    if not text.strip() or len(text) > 200:
        return None
    return re.compile(r"\d+".join(re.escape(part) for part in re.split(r"\d+", text)))


def _is_error(text: str) -> bool:
    match = _RAISED.match(text)
    return match is not None and _AN_ERROR.match(match["name"]) is not None


def _read_line(raised: Raised, index: int, text: str) -> bool:
    """Add one line to a traceback; return whether it was the last."""
    text = _without_prefix(raised, text)
    frame = _FRAME.match(text)
    if frame is not None:
        _add_frame(raised, frame, text)
        return False
    if not raised._frames or not text.strip() or text[0] in " \t|+" or text.lstrip()[0] in _BOX:
        _add_source(raised, text)
        return False
    match = _RAISED.match(text)
    if match is None or (match["message"] is None and match["name"].islower() and "." not in match["name"]):
        return False  # a line of another process, or the end of a line that a terminal wrapped
    _end(raised, index, text, match)
    return True


def _without_prefix(raised: Raised, text: str) -> str:
    """Return a line without what stands before each line of the traceback: a prefix, an indent."""
    if raised._prefix is not None:
        before = raised._prefix.match(text)
        if before is not None:
            text = text[before.end() :]
        elif not raised._frames:
            raised._prefix = None
    return text[raised._indent :] if raised._indent and not text[: raised._indent].strip() else text


def _add_frame(raised: Raised, frame: re.Match[str], text: str) -> None:
    if not raised._frames and frame["file"]:
        raised._indent = max(0, len(text) - len(text.lstrip()) - 2)
    raised._frames.append((frame["file"] or frame["boxed"], frame["line"] or frame["number"]))
    raised._source, raised._of_syntax = "", text.rstrip().endswith(f"line {frame['line']}")
    raised.activity = find_activity(text) or raised.activity
    raised.online = raised.online or is_web_library(raised._frames[-1][0])


def _add_source(raised: Raised, text: str) -> None:
    """Take the source line of the innermost frame, and the width of rich's box."""
    if text.lstrip().startswith("╰─"):
        raised._width = len(text.rstrip())
    boxed = _BOXED_SOURCE.match(text[:500])
    raised._source = boxed["source"].strip() if boxed else raised._source or text.strip()


def _end(raised: Raised, index: int, text: str, match: re.Match[str]) -> None:
    """End a traceback with the line that names the exception."""
    raised.index = raised.end = index
    raised.name, raised.message = match["name"], _REPEATED.sub("", match["message"] or "").strip()
    _undouble(raised)
    raised._room = max(0, raised._width - len(text.rstrip()))
    raised.message_follows = text.rstrip().endswith(":") or _VALIDATION.match(raised.message) is not None
    raised.harmless = raised.harmless or _is_harmless(raised)
    if not raised.place or any(is_own(file) for file, _ in raised._frames):  # else that of the chain before
        raised.place = find_place(raised._frames)
    if raised._before is not None:
        _chain(raised, raised._before)


def _chain(raised: Raised, before: Raised) -> None:
    """Let an exception stand for the one before it if it follows from it, or not if the program expected that one."""
    if _follows(raised, before):
        _take_first(raised, before)
    elif raised.handled and _is_expected(before):
        raised.since = before.end


def _is_harmless(raised: Raised) -> bool:
    """Return whether a thread of multiprocessing's queues, or a clean-up at the end of a process, caught it."""
    caught_by = raised._frames[0][0]
    of_queue = raised.name in _READER_GONE and caught_by.endswith("multiprocessing/queues.py")
    return of_queue or caught_by.endswith("multiprocessing/util.py")


def _undouble(raised: Raised) -> None:
    """Undo that two processes wrote the same line at once: ``ErrorError: : texttext``."""
    half = len(raised.name) // 2
    if raised.name != raised.name[:half] * 2:
        return
    raised.name, raised.message = raised.name[:half], raised.message[2:]
    middle = len(raised.message) // 2
    raised.message = raised.message[:middle] if raised.message == raised.message[:middle] * 2 else raised.message


def _is_expected(raised: Raised) -> bool:
    return raised.name.rpartition(".")[2] in _EXPECTED


def _follows(raised: Raised, first: Raised) -> bool:
    """Return whether an exception only repeats a worker's, or was raised by accident while another one was handled."""
    if first._remote and raised.text == first.text:
        return True
    if not raised.handled or raised._frames[-1] == first._frames[-1]:
        return False
    if first.noticed or raised.online or _is_expected(first):
        return False
    of_raise = raised._source.startswith("raise") or raised._source.count(")") > raised._source.count("(")
    # who caught the first one and raises another translates it; a package that was called meanwhile does not
    return not of_raise or find_package(raised._frames[-1][0]) != find_package(first._frames[0][0])


def _take_first(raised: Raised, first: Raised) -> None:
    """Let a traceback stand for the one that it follows from; its range covers both."""
    raised.after = first.after or ("" if raised.text == first.text else raised.text)
    raised._until = first.until
    raised.index, raised.name, raised.message, raised.message_follows = first.index, first.name, first.message, False
    raised.handled, raised.cause = first.handled, first.cause
    raised._frames, raised._source, raised.activity = first._frames, first._source, first.activity or raised.activity
    if _is_own_place(first.place):
        raised.place = first.place


def _last_of_chains(done: list[Raised]) -> list[Raised]:
    """Return the last traceback of each chain, which is what ended the program; its range covers the others.

    A thread's traceback after that of the main thread is marked as harmless: it follows from the end of the program.
    """
    by_start = {(raised.rank, raised.first): raised for raised in done}
    ordered = sorted(by_start.values(), key=lambda raised: raised.index)
    ended: set[int | None] = set()  # ranks whose main thread has ended
    for raised in ordered:
        raised.harmless = raised.harmless or (raised.threaded and raised.rank in ended)
        if not raised.threaded and not raised.harmless:
            ended.add(raised.rank)
    return ordered


def find_crash_place(lines: Sequence[Line], index: int) -> str:
    """Return file:line of the user's innermost frame in the stack that faulthandler prints after a fatal error."""
    stack = "".join(f"\n{text}" for text in texts_after(lines, index, 500))
    others, heading, current = stack.partition("\nCurrent thread")  # the stacks of other threads come before
    for frame in _FRAMES.finditer(current if heading else others):
        if is_own(frame["file"]):
            return f"{frame['file']}:{frame['line']}"
    return ""
