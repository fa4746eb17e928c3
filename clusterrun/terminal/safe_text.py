"""Make text of other programs safe for a terminal: characters that could move, hide or reorder it are escaped.

This covers log lines, job names, reasons and errors of other programs. An escape sequence in any of them could retitle
the window, fill the clipboard or overwrite earlier output.
"""

from __future__ import annotations

import re

# Inside a character class. Ranges, not categories, so that the same text looks the same under every
# Python's Unicode tables; a test compares them with the category Cf of the running one.
_CONTROL = (
    "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # C0 but tab and newline, DEL, C1: ESC, CSI, BEL, CR and their kin
    "\\u2028\\u2029"  # line and paragraph separators: a second line where we count one
    "\\ud800-\\udfff"  # lone surrogates: undecodable bytes, which a UTF-8 terminal cannot be sent
)
_FORMAT = (
    "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069"  # bidi marks, embeddings, overrides, isolates
    "\\u00ad\\u180e\\u200b-\\u200d\\u2060-\\u2065\\u206a-\\u206f\\ufeff\\ufff0-\\ufffb"  # zero width, or none at all
    "\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U00013430-\\U0001345f\\U000e0000-\\U000e0fff"  # other planes
    "\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u3164\\uffa0"  # letters and marks that are drawn as nothing
)
_UNSAFE = f"[{_CONTROL}{_FORMAT}]"  # compiled when it is first used, which is rare
_PLAIN = bytes((*b"\t\n", *range(0x20, 0x7F)))
_UNSAFE_IN_LINE = f"[\\t\\n{_CONTROL}{_FORMAT}]"


def safe_text(text: str) -> str:
    """Return the text with each character that could control a terminal or deceive its reader escaped (``\\x1b``).

    Tabs, newlines and all other printable text are unchanged. Backslashes are unchanged too, so the function is
    idempotent and cannot be undone: an escaped ESC and the four characters look the same.
    """
    # most lines pass here, at a fraction of the pattern's cost: nothing is left once plain ASCII is deleted
    if text.isascii() and not text.encode().translate(None, _PLAIN):
        return text
    return re.sub(_UNSAFE, _spell, text)


def safe_line(text: str) -> str:
    """Return ``safe_text`` of a text that must stay on one line (a name, a reason): tabs and newlines escaped too."""
    if text.isascii() and text.isprintable():
        return text
    return re.sub(_UNSAFE_IN_LINE, _spell, text)


def _spell(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
