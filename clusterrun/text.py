"""The one door for foreign text on its way to a terminal: what could move, hide or reorder it is spelled out.

Foreign is everything that clusterrun did not write itself: log lines, job names, reasons, errors of
other programs. An escape sequence in any of them could retitle the window, fill the clipboard or
paint over what was printed before.
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
_UNSAFE = re.compile(f"[{_CONTROL}{_FORMAT}]")
_CONTROL_BYTES = tuple(bytes((i,)) for i in (*range(9), *range(11, 32), 127))
# What the classes above are in UTF-8, some harmless neighbours included: the bytes that each begins with, which a block
# that has not all of them cannot hold, and the rest.
_SUSPECTS = tuple(
    (tuple(prefix[i : i + 1] for i in range(len(prefix))), re.compile(re.escape(prefix) + rest))
    for prefix, rest in (
        (b"\xc2", rb"[\x80-\x9f\xad]"),
        (b"\xcd\x8f", rb""),
        (b"\xd8\x9c", rb""),
        (b"\xe1\x85", rb"[\x9f\xa0]"),
        (b"\xe1\x9e", rb"[\xb4\xb5]"),
        (b"\xe1\xa0", rb"\x8e"),
        (b"\xe2\x80", rb"[\x8b-\x8f\xa8-\xae]"),
        (b"\xe2\x81", rb"[\xa0-\xaf]"),
        (b"\xe3\x85", rb"\xa4"),
        (b"\xef", rb"(?:\xbb\xbf|\xbe\xa0|\xbf[\xb0-\xbb])"),
        (b"\xf0\x93", rb"[\x90\x91]"),
        (b"\xf0\x9b", rb"\xb2"),
        (b"\xf0\x9d", rb"\x85"),
        (b"\xf3", rb"[\xa0\xa1]"),
    )
)
_PLAIN = bytes((*b"\t\n", *range(0x20, 0x7F)))
_LONG = 500  # bytes from which the C library's search pays
_UNSAFE_IN_LINE = re.compile(f"[\\t\\n{_CONTROL}{_FORMAT}]")


def safe_text(text: str) -> str:
    """The text with every character that could act on a terminal or deceive its reader spelled out (``\\x1b``).

    Tabs, newlines and all other printable text come back as they are. A backslash is left alone, so
    this is idempotent and cannot be undone: a spelled-out ESC and the four characters look the same.
    """
    # most lines pass here, at a fraction of the pattern's cost: nothing is left once plain ASCII is deleted
    if text.isascii():
        data = text.encode()
        if _control_free()(data) if len(data) > _LONG else not data.translate(None, _PLAIN):
            return text
    return _UNSAFE.sub(_spell, text)


def is_safe(data: bytes) -> bool:
    """Whether these bytes are UTF-8 that ``safe_text`` would leave as it is; told without looking at each character.

    A few harmless characters beside the harmful ones are called unsafe, never the other way round.
    """
    if not _control_free()(data):
        return False
    if data.isascii():
        return True
    for begin, pattern in _SUSPECTS:
        if all(byte in data for byte in begin) and pattern.search(data):
            return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@cache
def _control_free() -> Callable[[bytes], bool]:
    """Tells whether bytes have no control byte but tab and newline.

    glibc's strcspn looks for up to 16 bytes at once, 6.7 GB/s for all of them where a search for each took
    2.2 GB/s and bytes.translate 1.4 (x86-64). It stops at a NUL too, so that one needs no search.
    """
    sets = bytes((*range(1, 9), *range(11, 19))), bytes((*range(19, 32), 127))
    try:
        import ctypes

        span = ctypes.CDLL(None).strcspn
        span.argtypes, span.restype = [ctypes.c_char_p, ctypes.c_char_p], ctypes.c_size_t
    except (ImportError, OSError, AttributeError):
        return lambda data: not any(byte in data for byte in _CONTROL_BYTES)
    return lambda data: all(span(data, some) == len(data) for some in sets)


def safe_line(text: str) -> str:
    """``safe_text`` for what must stay on one line (a name, a reason): tabs and newlines are spelled out too."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE_IN_LINE.sub(_spell, text)


def _spell(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
