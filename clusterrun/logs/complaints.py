"""Which lines of a log look like an error, for --errors."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterrun.logs.labels import Labels, LogLine

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
_PART = 8192  # bytes of several lines in a row


class ErrorFilter:
    """Passes the lines of one file that look like errors.

    A traceback is its first line, the indented lines after it and the next one, all of one task.
    """

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._open: set[int | None] = set()  # tasks inside a traceback
        self._harmless: set[bytes] = set()  # lines without a word, one or several, as shapes: without _NOT_IN_WORDS

    def passes(self, line: LogLine) -> bool:
        text = line.text
        if prefix := _PREFIX.match(text):
            text = text[prefix.end() :]
        if line.rank in self._open:
            if text and not text.startswith((" ", "\t")):
                self._open.discard(line.rank)
            return True
        if _TRACEBACK in text:
            if len(self._open) < _OPEN_KEPT:
                self._open.add(line.rank)
            return True
        return text.startswith(_BETWEEN) or _names_error(text[:_SEARCHED])

    def select(self, block: bytes) -> bytes:
        """Return the lines that look like errors.

        The lines of a log differ in their numbers but share their words, so most shapes, also of several lines in a
        row, were seen before and need no check.
        """
        kept: list[bytes] = []
        for part in _parts(block):
            shape = part.translate(None, _NOT_IN_WORDS)
            if self._open or shape not in self._harmless:
                kept += self._select_each(part, shape)
        return b"".join(kept)

    def _select_each(self, part: bytes, shape: bytes) -> list[bytes]:
        shapes = shape.split(b"\n")
        shapes.pop()  # after the last newline
        self._learn(set(shapes) - self._harmless)
        if not self._open and self._harmless.issuperset(shapes):
            self._harmless.add(shape)
            return []
        kept: list[bytes] = []
        for raw, shape_of_raw in zip(part.split(b"\n"), shapes, strict=False):
            if (self._open or shape_of_raw not in self._harmless) and self._passes_raw(raw, shape_of_raw):
                kept.append(raw + b"\n")
        return kept

    def _passes_raw(self, raw: bytes, shape: bytes) -> bool:
        rank, label, payload = self._labels.split(raw)
        if shape in self._harmless and rank not in self._open:
            return False
        return self.passes(LogLine("out", rank, payload, label=label))

    def _learn(self, shapes: set[bytes]) -> None:
        """Remember which of these shapes have no word."""
        if len(self._harmless) > _SHAPES_KEPT:
            self._harmless.clear()
        data = b"\n".join(shapes)
        words = [word for word in _WORDS if word[:1] in data and word in data]  # one byte is found far faster
        self._harmless |= {shape for shape in shapes if not any(word in shape for word in words)}


def _parts(block: bytes) -> Iterator[bytes]:
    """Yield whole lines, about ``_PART`` bytes at a time."""
    at = 0
    while at < len(block):
        end = block.find(b"\n", at + _PART) + 1 or len(block)
        yield block[at:end]
        at = end


def _names_error(text: str) -> bool:
    for word, pattern in _SIGNS:
        if word in text and pattern.search(text):
            return "NCCL WARN" in text or _WARNING.search(text) is None
    return False
