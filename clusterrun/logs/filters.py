"""Select lines of a log: by rank, or by a pattern. ``complaints.py`` selects errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Protocol

from clusterrun.logs.labels import LABEL_CAP, Labels, LogLine

_FEW = 32  # ranks: a pattern finds the lines of so few faster than a check of each line
_NEAR = 2048  # characters after a hit whose lines are checked one by one, which is faster if many of them match
#: Patterns that match a line alike in any text, and never past its end: no anchors but \b, no lookaround, nothing that
#: matches a newline, no possessive repeat.
_LOCAL = re.compile(
    r"(?:\(\?i\))?"
    r"(?:\((?:\?:|(?!\?))|\|"
    r"|(?:[^\\^$*+?{}()\[\]|\x00-\x1f]|\)|\\[dwSb]|\\[!-/:-@\[-`{-~]"
    r"|\[(?!\^)\]?(?:[^\[\]\\\x00-\x1f]|\\[dwS]|\\[!-/:-@\[-`{-~])*\])"
    r"(?:(?:[*+?]|\{\d+(?:,\d*)?\})\??(?!\+))?)*"
)


class Filter(Protocol):
    """Decides which lines of one file are shown. It must be given every line in order, by either method."""

    def passes(self, line: LogLine) -> bool:
        """Return whether a line is shown."""

    def select(self, block: bytes) -> bytes:
        """Return the shown lines of a block of whole lines as they are in the file."""


def choose_ranks(ranks: Collection[int], labels: Labels) -> Callable[[bytes], bytes]:
    """Return a function that returns the lines with the labels of these ranks, of a block of whole lines."""
    if len(ranks) > _FEW:
        return lambda block: b"".join(raw + b"\n" for raw in block[:-1].split(b"\n") if labels.split(raw)[0] in ranks)
    written = [pattern for rank in sorted(ranks) if (pattern := labels.pattern(rank)) is not None]
    find = re.compile(b"\n(?:%b): [^\n]*" % b"|".join(written)).findall

    def choose(block: bytes) -> bytes:
        lines = find(b"\n" + block[:-1])
        return b"".join(lines)[1:] + b"\n" if lines else b""

    return choose if written else lambda _: b""


class PatternFilter:
    """Passes the lines that a pattern finds, or with ``exclude`` the others. The pattern does not see labels."""

    def __init__(self, pattern: re.Pattern[str], labels: Labels, *, exclude: bool = False) -> None:
        self._search, self._labels, self._exclude = pattern.search, labels, exclude
        self._local = is_local(pattern)

    def passes(self, line: LogLine) -> bool:
        return (self._search(_decode(line.payload)) is None) == self._exclude

    def select(self, block: bytes) -> bytes:
        text = _decode(block[:-1])
        if not self._local:
            return self._select_each(text)
        if not self._exclude:
            return self._select_hits(text)
        return block if self._search(text) is None else self._select_each(text)

    def _select_each(self, text: str) -> bytes:
        search, without, exclude = self._search, self._labels.without, self._exclude  # locals, as this is a hot loop
        return _encode([line for line in text.split("\n") if (search(without(line)) is None) == exclude])

    def _select_hits(self, text: str) -> bytes:
        """Return the matching lines of a text, which is searched as a whole up to the next hit."""
        search, without = self._search, self._labels.without
        kept: list[str] = []
        at = 0
        while at <= len(text) and (hit := search(text, at)) is not None:
            begin = text.rfind("\n", 0, hit.start()) + 1
            end = text.find("\n", max(hit.start(), begin + _NEAR))  # the next hits are often near
            lines = text[begin : end if end >= 0 else None].split("\n")
            for line in lines:
                hit = search(line)
                if hit is not None and (hit.start() >= LABEL_CAP or search(without(line)) is not None):
                    kept.append(line)
            at = end + 1 if end >= 0 else len(text) + 1
        return _encode(kept)


def is_local(pattern: re.Pattern[str]) -> bool:
    """Whether a pattern matches a line alike in any text that contains it; False if in doubt."""
    return not pattern.flags & ~(re.UNICODE | re.IGNORECASE) and _LOCAL.fullmatch(pattern.pattern) is not None


def _decode(data: bytes) -> str:
    """Return bytes as a text that keeps those that are not UTF-8."""
    return data.decode("utf-8", "surrogateescape")


def _encode(lines: list[str]) -> bytes:
    return "\n".join([*lines, ""]).encode("utf-8", "surrogateescape")
