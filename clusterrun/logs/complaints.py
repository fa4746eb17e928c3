"""Which lines of a log look like an error: the words of --errors."""

from __future__ import annotations

import re
from collections.abc import Callable

from clusterrun.logs.lines import LogLine

# What is in the text of each such line, and what the text must then match: looking for plain words first is thirty
# times faster than one pattern of them all.
_SIGNS = tuple(
    (word, re.compile(pattern or re.escape(word)))
    for word, pattern in (
        ("Error", r"Error\b"),  # Python's and C++'s: ValueError, torch.OutOfMemoryError, c10::Error
        ("xception", r"Exception\b|std::exception"),
        ("rror:", r"\b[Ee]rror: "),  # srun, slurmstepd, compilers
        ("rror ", r"\b[Ee]rror (?:: |in\b)"),
        (
            " error",
            r"\b(?:CUDA|cuda|NCCL|nccl|cuDNN|cuBLAS|HIP|[Bb]us|MPI|ECC|I/O|nput/output|[Ss]ystem|internal) error\b",
        ),
        ("ERROR", r"\bERROR\b"),  # levels of loggers
        ("FATAL", r"\bFATAL\b"),
        ("CRITICAL", r"\bCRITICAL\b"),
        ("PANIC", r"\bPANIC\b"),
        ("fatal: ", r"\bfatal: "),
        ("panic: ", r"\bpanic: "),
        ("[E", r"\[E\d{4} "),  # glog's, which torch's own C++ uses
        ("NCCL WARN", ""),
        ("Xid", r"\bXid\b"),
        ("out of memory", ""),
        ("OutOfMemory", ""),
        ("oom", r"\boom[-_ ]kill"),
        ("illed", r"\b[Kk]illed$"),
        ("SIG", r"\bSIG(?:KILL|SEGV|ABRT|BUS)\b"),
        ("egmentation fault", ""),
        ("core dumped", ""),
        ("terminate called", ""),
        ("what(): ", ""),
        ("Aborted", r"Aborted$"),
        ("ssertion", r"[Aa]ssertion .*failed"),
        ("No space left on device", ""),
        ("quota exceeded", ""),
        ("command not found", ""),
        ("Permission denied", ""),
        ("Connection re", r"Connection (?:refused|reset)"),
        ("DUE TO ", r"DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)"),
    )
)
# a warning that names an error is still a warning; NCCL's are what goes before a failure
_WARNING = re.compile(r"Warning: |\b(?:WARNING|WARN)\b|\b[Ww]arning: ")
_PREFIX = re.compile(r"\[rank\d+\]:\s?")  # torch's own, before each line of a traceback
_TRACEBACK = "Traceback (most recent call last)"
_BETWEEN = ("During handling of the above exception", "The above exception was the direct cause")
_OPEN_KEPT = 65_536
_LOOKED_AT = 8192  # characters of a line: what is wrong is said at its beginning
_WORDS = tuple(word.encode() for word in (*(word for word, _ in _SIGNS), _TRACEBACK, *_BETWEEN))
_IN_NO_WORD = bytes(set(range(256)) - set(b"".join(_WORDS)) - set(b"\n"))
_SHAPES_KEPT = 4096
_MANY = 8  # where more than one line of so many needs a look, all are looked at sooner


class Complaints:
    """Tells the lines of one file that look like errors; asked for each line in its order, as tracebacks come whole.

    A traceback is its head, the indented lines after it and the first line that is not, all of one task. Of the lines
    that are part of it or an error, those that ``grep`` finds are told.
    """

    def __init__(self, grep: re.Pattern[str] | None = None) -> None:
        self._grep = grep
        self._open: set[int | None] = set()  # tasks inside a traceback
        self._harmless: set[bytes] = set()  # lines without a word, as _IN_NO_WORD leaves them

    def __call__(self, line: LogLine) -> bool:
        return self._is_one(line) and (self._grep is None or self._grep.search(line.text) is not None)

    def told(self, raws: bytes, read: Callable[[bytes], LogLine]) -> list[LogLine] | None:
        """The lines to show of raw ones, each a line of its own, the last newline left out; None: look at each of them.

        ``read`` makes a line of a raw one. The lines of a log differ in their numbers and are few in their words, so
        most were seen before and need no look.
        """
        shapes = raws.translate(None, _IN_NO_WORD).split(b"\n")
        if not self._open and self._harmless.issuperset(shapes):
            return []
        self._learn(set(shapes) - self._harmless)
        looks = [shape not in self._harmless for shape in shapes]
        if sum(looks) * _MANY > len(looks):
            return None
        told: list[LogLine] = []
        for raw, look in zip(raws.split(b"\n"), looks, strict=True):
            if self._open or look:
                line = read(raw)
                if (look or line.rank in self._open) and self(line):
                    told.append(line)
        return told

    def _learn(self, shapes: set[bytes]) -> None:
        if len(self._harmless) > _SHAPES_KEPT:
            self._harmless.clear()
        words = _words_in(b"\n".join(shapes))
        self._harmless |= {shape for shape in shapes if not any(word in shape for word in words)} if words else shapes

    def _is_one(self, line: LogLine) -> bool:
        text = line.text
        if text.startswith("[rank"):
            text = _PREFIX.sub("", text, count=1)
        if line.rank in self._open:
            if not text.startswith((" ", "\t")) and text:
                self._open.discard(line.rank)
            if text or line.rank in self._open:
                return True
        if _TRACEBACK in text:
            if len(self._open) < _OPEN_KEPT:
                self._open.add(line.rank)
            return True
        if text.startswith(_BETWEEN):
            return True
        text = text[:_LOOKED_AT]
        for word, pattern in _SIGNS:
            if word in text and pattern.search(text):
                return "NCCL WARN" in text or _WARNING.search(text) is None
        return False


def _words_in(data: bytes) -> list[bytes]:
    return [word for word in _WORDS if word[:1] in data and word in data]  # one byte is looked for far faster
