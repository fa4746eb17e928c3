"""Make text of other programs safe for a terminal: characters that could move, hide or reorder it are escaped.

This covers log lines, job names, reasons and errors of other programs. An escape sequence in any of them could retitle
the window, fill the clipboard or overwrite earlier output.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

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
_CONTROL_BYTES = bytes((*range(1, 9), *range(11, 32), 127))
# What the classes above are in UTF-8, some harmless neighbours included: how some begin, the bytes of which one is
# next. The first three begin much that is harmless.
_SUSPECTS = (
    (b"\xc2", bytes((*range(0x80, 0xA0), 0xAD))),
    (b"\xe2\x80", bytes((*range(0x8B, 0x90), *range(0xA8, 0xAF)))),
    (b"\xe2\x81", bytes(range(0xA0, 0xB0))),
    (b"\xcd", b"\x8f"),
    (b"\xd8", b"\x9c"),
    (b"\xe1\x85", b"\x9f\xa0"),
    (b"\xe1\x9e", b"\xb4\xb5"),
    (b"\xe1\xa0", b"\x8e"),
    (b"\xe3\x85", b"\xa4"),
    (b"\xef\xbb", b"\xbf"),
    (b"\xef\xbe", b"\xa0"),
    (b"\xef\xbf", bytes(range(0xB0, 0xBC))),
    (b"\xf0\x93", b"\x90\x91"),
    (b"\xf0\x9b", b"\xb2"),
    (b"\xf0\x9d", b"\x85"),
    (b"\xf3", b"\xa0\xa1"),
)
_FREQUENT = 3
_FEW = 8  # characters of plane 0 that are found sooner one by one than by a pattern
_OTHERS_BEGIN = b"\xcd\xd8\xe1\xe3\xef\xf0\xf3"
_PLAIN = bytes((*b"\t\n", *range(0x20, 0x7F)))
_LONG = 500  # bytes from which the C library's search pays
_UNSAFE_IN_LINE = f"[\\t\\n{_CONTROL}{_FORMAT}]"


def safe_text(text: str) -> str:
    """Return the text with each character that could control a terminal or deceive its reader escaped (``\\x1b``).

    Tabs, newlines and all other printable text are unchanged. Backslashes are unchanged too, so the function is
    idempotent and cannot be undone: an escaped ESC and the four characters look the same.
    """
    # most lines pass here, at a fraction of the pattern's cost: nothing is left once plain ASCII is deleted
    if text.isascii():
        data = text.encode()
        if not (_held()(data, _CONTROL_BYTES) if len(data) > _LONG else data.translate(None, _PLAIN)):
            return text
    return re.sub(_UNSAFE, _spell, text)


def is_safe(data: bytes) -> bool:
    """Return whether ``safe_text`` would not change these bytes, as UTF-8, without a test of each character.

    A few harmless characters count as unsafe, never the other way round.
    """
    held = _held()
    if held(data, _CONTROL_BYTES):
        return False
    if data.isascii():
        return True
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    for begin, ends in _SUSPECTS if held(data, _OTHERS_BEGIN) else _SUSPECTS[:_FREQUENT]:
        if begin[:1] in data and begin[1:2] in data:
            seen = held(data, ends)
            if len(seen) > _FEW or begin >= b"\xf0":
                if re.search(begin + b"[" + re.escape(ends) + b"]", data):  # slow if the beginning is frequent
                    return False
            elif any((begin + seen[i : i + 1]).decode() in text for i in range(len(seen))):
                return False
    return True


@cache
def _held() -> Callable[[bytes, bytes], bytes]:
    """Return a function that finds which of some bytes occur in data; it stops after _FEW of them, or at a NUL.

    glibc's strcspn looks for up to 16 bytes at once, 6.7 GB/s for all control bytes where a search for each took
    2.2 GB/s and bytes.translate 1.4 (x86-64). It stops at a NUL too.
    """
    try:
        import ctypes

        span = ctypes.CDLL(None).strcspn
        span.argtypes, span.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_size_t
    except (ImportError, OSError, AttributeError):
        return lambda data, some: bytes(byte for byte in (0, *some) if byte in data)

    def held(data: bytes, some: bytes) -> bytes:
        found, start = b"", 0
        for first in range(0, len(some), 16):
            wanted = some[first : first + 16]
            at = span(data, wanted)
            while at < len(data) and len(found) <= _FEW:
                found += data[at : at + 1]
                if not data[at]:
                    return found
                wanted = wanted.replace(data[at : at + 1], b"")
                start = start or ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
                at += span(start + at, wanted)
        return found

    return held


def safe_line(text: str) -> str:
    """Return ``safe_text`` of a text that must stay on one line (a name, a reason): tabs and newlines escaped too."""
    if text.isascii() and text.isprintable():
        return text
    return re.sub(_UNSAFE_IN_LINE, _spell, text)


def _spell(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
