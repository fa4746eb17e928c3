"""Find the lines of a text that match a pattern, without a check of each line where the pattern allows it."""

from __future__ import annotations

import re
from collections.abc import Collection

#: Patterns that match a line alike in any text, and never past its end: no anchors but \b, no lookaround, nothing that
#: matches a newline, no possessive repeat.
_LOCAL = re.compile(
    r"(?:\(\?i\))?"
    r"(?:\((?:\?:|(?!\?))|\|"
    r"|(?:[^\\^$*+?{}()\[\]|\x00-\x1f]|\)|\\[dwSb]|\\[!-/:-@\[-`{-~]"
    r"|\[(?!\^)\]?(?:[^\[\]\\\x00-\x1f]|\\[dwS]|\\[!-/:-@\[-`{-~])*\])"
    r"(?:(?:[*+?]|\{\d+(?:,\d*)?\})\??(?!\+))?)*"
)
_DENSE = 256  # characters from one match to the next; with fewer, checking each line is faster
_SAMPLE = 8  # matches after which that is decided


class Finder:
    """Finds the lines of a text that match a pattern after their label."""

    def __init__(self, pattern: re.Pattern[str], labels: Collection[str], width: int) -> None:
        """``labels`` are all ``width`` characters wide; the pattern does not see them."""
        self._search, self._labels, self._width = pattern.search, labels, width
        self._local = is_local(pattern)

    def lines(self, text: str) -> list[str]:
        """Return the matching lines, without newlines, of a text of whole lines without its last newline."""
        kept: list[str] = []
        at = matches = 0
        while self._local:
            found = self._search(text, at)
            if found is None:
                return kept
            begin = text.rfind("\n", at, found.start()) + 1 or at
            end = text.find("\n", found.start())
            line = text[begin:] if end < 0 else text[begin:end]
            kept += self._matching([line])
            if end < 0:
                return kept
            at, matches = end + 1, matches + 1
            if matches == _SAMPLE and at < _DENSE * _SAMPLE:
                break
        return kept + self._matching(text[at:].split("\n"))

    def _matching(self, lines: list[str]) -> list[str]:
        search, labels, width = self._search, self._labels, self._width
        return [line for line in lines if search(line[width:] if line[:width] in labels else line)]


def is_local(pattern: re.Pattern[str]) -> bool:
    """Whether a pattern matches a line alike in any text that contains it; False if in doubt."""
    return not pattern.flags & ~(re.UNICODE | re.IGNORECASE) and _LOCAL.fullmatch(pattern.pattern) is not None
