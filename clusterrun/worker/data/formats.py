"""Read the rows of a file in its format, and report bad rows."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from ...base.errors import WorkerError
from ...base.units import plural

EXCERPT = 60
SURROGATE = re.compile(rb"\\u[dD]").search  # what JSON writes for a character above U+FFFF, or for half of one
UTF16 = (b"\xff\xfe", b"\xfe\xff")
CSV_PROBLEMS = {
    "unexpected end of data": "a quote opened here is never closed",
    "new-line character seen in unquoted field": "a bare carriage return",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One row; `where` is its place: "FILE:LINE" (of its first line), "FILE row N" or "builtin:NAME:N"."""

    values: dict[str, Any]
    where: str


@dataclass(frozen=True)
class Bad:
    """A row that does not parse; `lines` is how many lines of the file it takes."""

    where: str
    problem: str
    lines: int = 1


def format_of(path: str) -> str | None:
    """Return the format of rows by the file's suffix (".jsonl", ".csv" …; ".gz" after it is allowed), None if none."""
    stem, suffix = os.path.splitext(path.lower())
    if suffix == ".gz":
        suffix = os.path.splitext(stem)[1]
        return suffix if suffix in READERS and suffix != ".parquet" else None
    return suffix if suffix in READERS else None


def read_file(path: str) -> Iterator[Row | Bad]:
    """Yield the rows of a file in its format; raises WorkerError naming a file that cannot be read as a whole."""
    try:
        yield from READERS[format_of(path) or ""](path)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None


def read_text(path: str) -> str:
    """Read a whole file as one text, bytes that are not UTF-8 replaced; raises WorkerError."""
    try:
        with _open(path) as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None
    _refuse_utf16(path, data)
    if b"\0" in data[:8192]:
        raise WorkerError(f"{shown(path)} is not a text file (it contains NUL bytes)")
    return data.decode("utf-8-sig", errors="replace")


def _unreadable(path: str, error: Exception) -> WorkerError:
    return WorkerError(f"cannot read {shown(path)}: {getattr(error, 'strerror', None) or first_line(error)}")


def shown(text: str) -> str:
    """Return a name for a message: unchanged if it is printable, else quoted and escaped."""
    return text if text.isprintable() else repr(text)


def first_line(error: Exception) -> str:
    """Return the first line of a library's error message, made printable."""
    lines = str(error).strip().splitlines()
    line = lines[0].strip() if lines else type(error).__name__
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)


def excerpt(data: str | bytes) -> str:
    """Quote the beginning of a bad row on one line, at most EXCERPT characters."""
    text = data[:EXCERPT].decode(errors="backslashreplace") if isinstance(data, bytes) else data[:EXCERPT]
    quoted = repr(text.rstrip("\r\n"))
    return quoted if len(quoted) <= EXCERPT else quoted[: EXCERPT - 1] + "…"


def _open(path: str) -> gzip.GzipFile | IO[bytes]:
    return gzip.open(path) if path.lower().endswith(".gz") else open(path, "rb")


def _lines(path: str) -> Iterator[bytes]:
    """Yield the file's lines, split at newlines only, without a byte order mark."""
    with _open(path) as file:
        first = file.readline()
        _refuse_utf16(path, first)
        if first:
            yield first.removeprefix(b"\xef\xbb\xbf")
        yield from file


def _refuse_utf16(path: str, data: bytes) -> None:
    if data.startswith(UTF16):
        raise WorkerError(f"{shown(path)} is UTF-16: save it as UTF-8")


def _jsonl(path: str) -> Iterator[Row | Bad]:
    name, loads = shown(path), json.loads
    for number, line in enumerate(_lines(path), 1):
        try:
            values = loads(line.rstrip().decode())
        except (ValueError, RecursionError) as error:
            if line.strip():
                yield Bad(f"{name}:{number}", f"{_json_problem(error, line)}: {excerpt(line)}")
            continue
        if type(values) is not dict:
            yield Bad(f"{name}:{number}", f"not a JSON object: {excerpt(line)}")
        elif SURROGATE(line) and _lone_surrogate(values):
            yield Bad(f"{name}:{number}", f"unpaired surrogate: {excerpt(line)}")
        else:
            yield Row(values, f"{name}:{number}")


def _json_problem(error: Exception, line: bytes) -> str:
    if b"\0" in line:
        return "a NUL byte"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 (byte {error.start + 1})"
    if isinstance(error, json.JSONDecodeError):
        return f"broken JSON ({error.msg} at column {error.colno})"
    return (
        "broken JSON (nested too deeply)"
        if isinstance(error, RecursionError)
        else f"broken JSON ({str(error).partition(';')[0]})"
    )


def _lone_surrogate(values: Any) -> bool:
    """Return whether a JSON value has unpaired surrogate, which no tokenizer accepts."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except RecursionError:
        return False
    return False


def _json(path: str) -> Iterator[Row | Bad]:
    name = shown(path)
    data = b"".join(_lines(path))
    try:
        document = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        if not data.strip():
            return  # an empty file has no rows, as in the other formats
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        hint = (
            "; if each line is one JSON object, rename the file so that its name ends in .jsonl"
            if data.lstrip().startswith(b"{")
            else ""
        )
        raise WorkerError(f"{name}{line}: {_json_problem(error, data)}{hint}") from None
    if not isinstance(document, list):
        raise WorkerError(f"{name}: not a list of objects: {excerpt(data)}")
    escaped = SURROGATE(data)
    for number, values in enumerate(document, 1):
        if not isinstance(values, dict):
            yield Bad(f"{name} row {number}", f"not a JSON object: {excerpt(repr(values))}")
        elif escaped and _lone_surrogate(values):
            yield Bad(f"{name} row {number}", "unpaired surrogate")
        else:
            yield Row(values, f"{name} row {number}")


def _csv(path: str, delimiter: str) -> Iterator[Row | Bad]:
    csv.field_size_limit(2**31 - 1)  # a field may be a whole document; the default is 131 072 characters
    name, lines = shown(path), _CheckedLines(path)
    problems = lines.problems
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] = []
    width = -1
    while True:
        start = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fields = []
            problem = first_line(error).partition(" - ")[0]
            problems.append(CSV_PROBLEMS.get(problem, problem))
        if not problems and len(fields) == width:
            yield Row(dict(zip(header, fields)), f"{name}:{start}")  # noqa: B905, the lengths were just compared
        elif not problems and _is_blank(fields):
            continue
        elif not header:
            header = _header(f"{name}:{start}", fields, problems, lines.last)
            width = len(header)
        else:
            problems.append(f"{plural(len(fields), 'field')}, but the header has {width}")
            quoted = excerpt(delimiter.join(fields) or lines.last)
            yield Bad(f"{name}:{start}", f"{problems[0]}: {quoted}", reader.line_num - start + 1)
            problems.clear()


class _CheckedLines:
    """The lines of a file for csv.reader, which takes no bytes, and what is wrong with them since the last row."""

    def __init__(self, path: str) -> None:
        self._lines = _lines(path)
        self.problems: list[str] = []
        self.last = b""

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.last = line
            if b"\0" in line:
                self.problems.append("a NUL byte")
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                self.problems.append(f"not UTF-8 (byte {error.start + 1})")
                text = line.decode(errors="replace")
            yield text


def _is_blank(fields: list[str]) -> bool:
    return len(fields) < 2 and not "".join(fields).strip()


def _header(where: str, fields: list[str], problems: list[str], line: bytes) -> list[str]:
    twice = [field for field in fields if fields.count(field) > 1]
    if twice:
        problems.append(f"column {twice[0]!r} appears twice")
    if problems:
        raise WorkerError(f"{where}: the header is broken: {problems[0]}: {excerpt(line)}")
    return fields


def _parquet(path: str) -> Iterator[Row | Bad]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise WorkerError(f"reading {shown(path)} needs pyarrow: pip install pyarrow") from None
    name = shown(path)
    try:
        with parquet.ParquetFile(path) as file:
            rows = (values for batch in file.iter_batches() for values in batch.to_pylist())
            for number, values in enumerate(rows, 1):
                yield Row(values, f"{name} row {number}")
    except (pyarrow.ArrowException, ValueError) as error:
        raise WorkerError(f"cannot read {shown(path)} as parquet: {first_line(error)}") from None


READERS: dict[str, Callable[[str], Iterator[Row | Bad]]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json,
    ".csv": partial(_csv, delimiter=","),
    ".tsv": partial(_csv, delimiter="\t"),
    ".parquet": _parquet,
}
