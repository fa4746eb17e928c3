"""Which lines of a log look like an error, for --errors."""

from __future__ import annotations

import re
from collections.abc import Callable

from clusterrun.logs.lines import LogLine

# A plain word in the text, and the pattern that the text must then match: searching for the words first is thirty times
# faster than one pattern of them all.
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
# a warning that names an error is still a warning; but NCCL's precede a failure
_WARNING = re.compile(r"Warning: |\b(?:WARNING|WARN)\b|\b[Ww]arning: ")
_PREFIX = re.compile(r"\[rank\d+\]:\s?")  # torch's own, before each line of a traceback
_TRACEBACK = "Traceback (most recent call last)"
_BETWEEN = ("During handling of the above exception", "The above exception was the direct cause")
_OPEN_KEPT = 65_536
_SEARCHED = 8192  # characters of a line: an error is named at its start
_WORDS = tuple(word.encode() for word in (*(word for word, _ in _SIGNS), _TRACEBACK, *_BETWEEN))
_NOT_IN_WORDS = bytes(set(range(256)) - set(b"".join(_WORDS)) - set(b"\n"))
_SHAPES_KEPT = 4096
_MANY = 8  # if more than one line in so many must be checked, checking all is faster


class ErrorMatcher:
    """Matches the lines of one file that look like errors. It must be called for every line in order.

    A traceback is its first line, the indented lines after it and the next one, all of one task. Of the lines that are
    an error or part of a traceback, those that ``grep`` finds match.
    """

    def __init__(self, grep: re.Pattern[str] | None = None) -> None:
        self._grep = grep
        self._open: set[int | None] = set()  # tasks inside a traceback
        self._harmless: set[bytes] = set()  # shapes of lines without a word: the line without _NOT_IN_WORDS

    def __call__(self, line: LogLine) -> bool:
        return self._is_error(line) and (self._grep is None or self._grep.search(line.text) is not None)

    def find_errors(self, raws: bytes, parse: Callable[[bytes], LogLine]) -> list[LogLine] | None:
        """Return the matching lines of a block without its last newline; None if each line has to be checked.

        ``parse`` turns a raw line into a LogLine. The lines of a log differ in their numbers but share their words, so
        most shapes were seen before and need no check.
        """
        shapes = raws.translate(None, _NOT_IN_WORDS).split(b"\n")
        if not self._open and self._harmless.issuperset(shapes):
            return []
        self._learn(set(shapes) - self._harmless)
        unknown = [shape not in self._harmless for shape in shapes]
        if sum(unknown) * _MANY > len(unknown):
            return None
        found: list[LogLine] = []
        for raw, check in zip(raws.split(b"\n"), unknown, strict=True):
            if self._open or check:
                line = parse(raw)
                if (check or line.rank in self._open) and self(line):
                    found.append(line)
        return found

    def _learn(self, shapes: set[bytes]) -> None:
        if len(self._harmless) > _SHAPES_KEPT:
            self._harmless.clear()
        data = b"\n".join(shapes)
        words = [word for word in _WORDS if word[:1] in data and word in data]  # one byte is found far faster
        self._harmless |= {shape for shape in shapes if not any(word in shape for word in words)} if words else shapes

    def _is_error(self, line: LogLine) -> bool:
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
        text = text[:_SEARCHED]
        for word, pattern in _SIGNS:
            if word in text and pattern.search(text):
                return "NCCL WARN" in text or _WARNING.search(text) is None
        return False
