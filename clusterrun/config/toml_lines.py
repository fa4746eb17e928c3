"""Parse TOML files, with errors that name the file and the line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.errors import ConfigError

_MAX_CANDIDATES = 20  # each costs a parse of the start of the file, only for an error message
_MAX_STATEMENT = 500  # lines of one multi-line value
_MAX_PARSED = 1_000_000  # characters, for one error message
MOST_PARTS = 32
"""The maximum number of parts of a dotted key. tomllib takes minutes for thousands; a setting has up to five."""
_TEXT = re.compile(r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}")
_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")


class Document(NamedTuple):
    """A parsed file: its name for messages, its text, its data, and what its file paths start from."""

    source: str
    text: str
    data: dict[str, Any]
    base: Path = Path()
    home: Path | None = None

    def place(self, path: Sequence[str]) -> str:
        """Return the place of the key at ``path``: ``FILE:LINE``, or ``FILE`` if the line is not found."""
        line = line_of(self.text, path)
        return f"{self.source}:{line}" if line else self.source

    def error(self, path: Sequence[str], message: str, *, hint: str = "") -> ConfigError:
        """Return an error about the key at ``path``: ``FILE:LINE: message``."""
        return ConfigError(f"{self.place(path)}: {message}", hint=hint)


def parse(source: str, raw: bytes, base: Path = Path(), home: Path | None = None) -> Document:
    """Parse the bytes of a TOML file. Raises ConfigError with the line of a syntax error."""
    import tomllib  # a submission without a job file or profile parses none

    try:
        # tomllib counts lines by \n only; Windows editors write a byte order mark and \r\n
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{line}: not UTF-8 text", hint="save the file as UTF-8") from None
    if line := _line_of_long_key(text):
        hint = "check that this is the right file"
        raise ConfigError(f"{source}:{line}: a key has more than {MOST_PARTS} parts", hint=hint)
    try:
        return Document(source, text, tomllib.loads(text), base, home)
    except RecursionError:
        raise ConfigError(
            f"{source}: the values are nested too deeply", hint="check that this is the right file"
        ) from None
    except ValueError as error:  # TOMLDecodeError, and int()'s own for a number of thousands of digits
        message = str(error)
        place = _PLACE.search(message)
        if place is None:
            raise ConfigError(f"{source}: {message}") from None
        line, where = text.rstrip("\n").count("\n") + 1, "at the end of the file"
        if place["line"]:
            line, where = int(place["line"]), f"column {place['column']}"
        hint = 'put strings in quotes: partition = "gpu"' if "Invalid value" in message else ""
        raise ConfigError(f"{source}:{line}: {message[: place.start()]} ({where})", hint=hint) from None


def _line_of_long_key(text: str) -> int:
    """Return the line of a key with too many parts, 0 if there is none; texts and comments may hold any dots."""
    bare = _TEXT.sub(lambda match: "_" + "\n" * match[0].count("\n"), text)
    match = _LONG_KEY.search(bare)
    return bare.count("\n", 0, match.start()) + 1 if match else 0


def line_of(text: str, path: Sequence[str]) -> int | None:
    """Return the line number (from 1) where the key at ``path`` is set, or None.

    It is the line before which the file parses without the key, and after whose statement it parses with it. So
    comments, multi-line strings and other tables with the same key do not match. A key with escapes is not found, and
    none that would take seconds to find.
    """
    if not path:
        return None
    parser = _Beginnings(text.split("\n"))
    for start in [n for n, line in enumerate(parser.lines) if path[-1] in line][:_MAX_CANDIDATES]:
        before = parser.parse(start)
        if before is None or _has(before, path):
            continue
        data = next((data for end in parser.ends(start) if (data := parser.parse(end)) is not None), None)
        if _has(data, path):
            return start + 1
    return None


class _Beginnings:
    """Parses the first lines of a text, up to a number of characters in total."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines, self._left = lines, _MAX_PARSED

    def ends(self, start: int) -> range:
        """Return the numbers of lines after which the statement that begins at a line may end."""
        return range(start + 1, min(len(self.lines), start + _MAX_STATEMENT) + 1)

    def parse(self, count: int) -> dict[str, Any] | None:
        """Return what the first lines set, None if they are no TOML by themselves, or too many have been parsed."""
        import tomllib

        text = "\n".join(self.lines[:count]) + "\n"
        self._left -= len(text)
        if self._left < 0:
            return None
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError):
            return None


def _has(data: Any, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return False
        data = data[key]
    return True
