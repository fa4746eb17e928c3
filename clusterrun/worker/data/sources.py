"""Read what `data=` names as rows or texts: files, globs, built-in data, data sets of the Hugging Face Hub."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...base.errors import WorkerError, suggestion
from ...base.units import plural
from . import builtin, hub_data
from .formats import READERS, Bad, Row, format_of, read_file, read_text, shown
from .hub_data import PREFIX

PYDOC = "pydoc"
BUILTIN = {"builtin:conversations": builtin.conversations, "builtin:labelled": builtin.labelled}
LISTED = 20  # columns named in a message


@dataclass(frozen=True)
class Rows:
    """Rows in the order of the files; `columns` is every name seen, `skipped` counts the bad rows left out."""

    rows: list[Row]
    columns: tuple[str, ...]
    skipped: int


def read_rows(data: str | Sequence[str], *, on_bad_row: str = "stop", most: int | None = None) -> Rows:
    """Read the rows of files, globs, `hf:org/name:config[split]`, `builtin:conversations` or `builtin:labelled`.

    With `most` only so many rows of each source are read. Raises WorkerError naming what is missing (status 2), empty,
    or cannot be read; and for a row that does not parse, unless `on_bad_row` is "skip".
    """
    return _read_sources(find_sources(data), on_bad_row, most)


def require_columns(rows: Rows, names: Sequence[str], what: str, *, on_bad_row: str = "stop") -> Rows:
    """Return the rows, all of which have the columns `names`; `what` names the data in messages.

    Raises WorkerError for a column that no row has (status 2), and for a row without one of them, unless `on_bad_row`
    is "skip": then such rows are left out and counted.
    """
    for name in names:
        if name not in rows.columns:
            hint = suggestion(name, rows.columns)
            raise WorkerError(f"no column {name!r} in {what}{hint}; {list_columns(rows)}", status=2)
    wanted = set(names)
    good = []
    for row in rows.rows:
        if wanted <= row.values.keys():
            good.append(row)
        elif on_bad_row != "skip":
            lacking = next(name for name in names if name not in row.values)
            raise WorkerError(f"{row.where}: no {lacking!r} in this row (set on_bad_row=skip to skip such rows)")
    if not good:
        raise WorkerError(f"no row in {what} has all of the columns {', '.join(names)}")
    return Rows(good, rows.columns, rows.skipped + len(rows.rows) - len(good))


def list_columns(rows: Rows) -> str:
    """Return the names of the first columns, for a message."""
    listed = ", ".join(shown(column) for column in rows.columns[:LISTED])
    return f"columns: {listed}{', …' * (len(rows.columns) > LISTED)}"


def read_texts(
    data: str | Sequence[str], *, text_column: str = "text", on_bad_row: str = "stop"
) -> tuple[list[str], int]:
    """Read documents: a file of rows gives its `text_column`, "pydoc" the built-in ones, any other file is one text.

    Return them without empty ones, and how many bad rows were skipped. Raises WorkerError as read_rows() and
    require_columns() do, and where nothing but empty texts is left.
    """
    texts: list[str] = []
    skipped = 0
    for source in find_sources(data):
        if source == PYDOC:
            texts += builtin.documents()
        elif not _has_rows(source):
            texts.append(read_text(source))
        else:
            table = _read_sources([source], on_bad_row)
            table = require_columns(table, [text_column], shown(source), on_bad_row=on_bad_row)
            column = [*_column_of_texts(table, text_column, on_bad_row)]
            texts += column
            skipped += table.skipped + len(table.rows) - len(column)
    texts = [text for text in texts if text and not text.isspace()]
    if not texts:
        raise WorkerError(f"no text in {_called(data)}")
    return texts, skipped


def find_sources(data: str | Sequence[str]) -> list[str]:
    """Return existing files (each glob's in order) and names of other data; raises WorkerError (status 2).

    A data set of the hub gives its files in the hub's cache, downloaded unless they are there.
    """
    names = [data] if isinstance(data, str) else list(data)
    for name in names:
        if not isinstance(name, str):
            raise WorkerError(f"data must be a file name or a list of file names, got {name!r}", status=2)
    if not any(names):
        raise WorkerError("no data given: use a file, a glob, or hf:org/name", status=2)
    return [source for name in names for source in _expand(name)]


def _column_of_texts(rows: Rows, column: str, on_bad_row: str) -> Iterator[str]:
    for row in rows.rows:
        text = row.values[column]
        if isinstance(text, str):
            yield text
        elif on_bad_row != "skip":
            kind = "null" if text is None else f"of type {type(text).__name__}"
            skip = "(set on_bad_row=skip to skip such rows)"
            raise WorkerError(f"{row.where}: the value of {column!r} is {kind}, not a string {skip}")


def _expand(name: str) -> list[str]:
    if name == PYDOC or name in BUILTIN:
        return [name]
    if name.startswith(PREFIX):
        return hub_data.fetch(name)
    if name.startswith("builtin:"):
        raise WorkerError(f"no such data: {shown(name)}{suggestion(name, BUILTIN)}", status=2)
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        suffixes = sorted(filter(None, map(format_of, os.listdir(path)))) or [".txt"]
        inside = os.path.join(name, f"*{suffixes[0]}")
        raise WorkerError(f"{shown(name)} is a folder: give its files, for example {shown(inside)}", status=2)
    if os.path.exists(path):
        return [path]
    if glob.has_magic(path):
        return _matches(name, path)
    raise WorkerError(f"no such file: {shown(name)}{_nearest_file(path)}{_in_folder(path)}{_hub_hint(name)}", status=2)


def _matches(name: str, pattern: str) -> list[str]:
    matches = sorted({match for match in glob.glob(pattern, recursive=True) if not os.path.isdir(match)})
    if not matches:
        raise WorkerError(f"no file matches {shown(name)}{_in_folder(pattern)}", status=2)
    return matches


def _in_folder(path: str) -> str:
    return "" if os.path.isabs(path) else f" (in {shown(os.getcwd())})"


def _nearest_file(path: str) -> str:
    folder, name = os.path.split(path)
    try:
        return suggestion(name, os.listdir(folder or "."))
    except (OSError, ValueError):  # no such folder either, or a NUL in its name
        return ""


def _hub_hint(name: str) -> str:
    looks_so = re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not format_of(name)
    return f"; for a dataset on the Hugging Face Hub, write {PREFIX}{name}" if looks_so else ""


def _has_rows(source: str) -> bool:
    return source in BUILTIN or format_of(source) is not None


def _read_sources(sources: list[str], on_bad_row: str, most: int | None = None) -> Rows:
    rows: list[Row] = []
    skipped = 0
    for source in sources:
        if not _has_rows(source):
            known = ", ".join(READERS)
            raise WorkerError(f"unknown file type: {shown(source)}; known: {known}", status=2)
        skipped += _collect(source, rows, on_bad_row, most)
    columns: dict[str, None] = {}
    for row in rows:
        if not row.values.keys() <= columns.keys():
            columns.update(dict.fromkeys(row.values))
    return Rows(rows, tuple(columns), skipped)


def _collect(source: str, rows: list[Row], on_bad_row: str, most: int | None) -> int:
    """Append a source's rows; returns how many bad ones were skipped."""
    before = len(rows)
    skipped = 0
    for item in itertools.islice(_read(source), most):
        if isinstance(item, Row):
            rows.append(item)
        elif on_bad_row == "skip":
            skipped += item.lines
        else:
            raise WorkerError(f"{item.where}: {item.problem} (set on_bad_row=skip to skip such rows)")
    if len(rows) == before:
        why = f": {plural(skipped, 'bad row')} skipped" if skipped else ""
        raise WorkerError(f"no rows in {shown(source)}{why}")
    return skipped


def _read(source: str) -> Iterator[Row | Bad]:
    if source in BUILTIN:
        return (Row(values, f"{source}:{number}") for number, values in enumerate(BUILTIN[source](), 1))
    return read_file(source)


def _called(data: str | Sequence[str]) -> str:
    return ", ".join(shown(name) for name in ([data] if isinstance(data, str) else list(data)[:3]))
