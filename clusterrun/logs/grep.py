"""The lines of a text that a pattern finds, without a look at each line where the pattern allows that."""

from __future__ import annotations

import re
from collections.abc import Collection

#: Patterns that find something in a line wherever that line stands, and never past its end: no anchors but \b, nothing
#: that looks around, nothing that a newline matches, nothing that gives back less than it could.
_LOCAL = re.compile(
    r"(?:\(\?i\))?"
    r"(?:\((?:\?:|(?!\?))|\|"
    r"|(?:[^\\^$*+?{}()\[\]|\x00-\x1f]|\)|\\[dwSb]|\\[!-/:-@\[-`{-~]"
    r"|\[(?!\^)\]?(?:[^\[\]\\\x00-\x1f]|\\[dwS]|\\[!-/:-@\[-`{-~])*\])"
    r"(?:(?:[*+?]|\{\d+(?:,\d*)?\})\??(?!\+))?)*"
)
_DENSE = 256  # characters from one found line to the next; where they are fewer, all lines are looked at sooner
_LOOKED_AT = 8  # lines found after which that is judged


class Finder:
    """Finds the lines of a text whose own text, after the label, a pattern matches."""

    def __init__(self, pattern: re.Pattern[str], labels: Collection[str], width: int) -> None:
        """A line that begins with one of these labels, each that many characters wide, has its text after it."""
        self._search, self._labels, self._width = pattern.search, labels, width
        self._local = is_local(pattern)

    def lines(self, text: str) -> list[str]:
        """Those lines, without their newlines, of a text of whole lines without the last newline."""
        kept: list[str] = []
        at = looked_at = 0
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
            at, looked_at = end + 1, looked_at + 1
            if looked_at == _LOOKED_AT and at < _DENSE * _LOOKED_AT:
                break
        return kept + self._matching(text[at:].split("\n"))

    def _matching(self, lines: list[str]) -> list[str]:
        search, labels, width = self._search, self._labels, self._width
        return [line for line in lines if search(line[width:] if line[:width] in labels else line)]


def is_local(pattern: re.Pattern[str]) -> bool:
    """Whether what it finds in a line it would find there in any text of which that is a line; False where in doubt."""
    return not pattern.flags & ~(re.UNICODE | re.IGNORECASE) and _LOCAL.fullmatch(pattern.pattern) is not None
