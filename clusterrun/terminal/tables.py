"""Aligned tables of plain text that fit a terminal: unimportant columns are dropped, then names are cut. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from clusterrun.terminal.safe_text import safe_line

GAP = "  "
UNLIMITED = 1 << 30
SPARE = 4
"""Columns whose ``leaves`` is at most this are dropped before a name or a reason is cut."""


class Column(NamedTuple):
    """A column: cells may be cut to the width ``least`` (0: never), and ``leaves`` is the order in which columns are
    dropped in a narrow terminal (1 first, 0 never)."""

    name: str
    least: int = 0
    leaves: int = 0
    right: bool = False


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int = UNLIMITED) -> list[str]:
    """Return the heading and the rows as lines at most ``width`` terminal cells wide.

    Cells must be safe already: one printable line each.
    """
    by_column = list(map(list, zip([column.name for column in columns], *rows, strict=True)))
    natural = [max(map(cell_width, cells)) for cells in by_column]
    kept, widths = _narrow(columns, by_column, natural, width)
    padded = [[_padded(cell, widths[i], columns[i].right) for cell in by_column[i]] for i in kept]
    return [cut(GAP.join(cells).rstrip(), width) for cells in zip(*padded, strict=True)]


def filled(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the positions of the columns to show: all but the optional ones that no row has a value for."""
    return [at for at, column in enumerate(columns) if not column.leaves or any(row[at] for row in rows)]


def _narrow(
    columns: Sequence[Column], by_column: list[list[str]], natural: list[int], width: int
) -> tuple[list[int], list[int]]:
    """Return the columns that stay in this width, and all widths; a column is dropped before a cell is cut."""
    least = [min(w, column.least or w) for column, w in zip(columns, natural, strict=True)]
    kept = list(range(len(columns)))
    for leaving in _leaving(columns, by_column):
        is_optional = columns[leaving].leaves <= SPARE or not any(by_column[leaving][1:])
        if _total(natural if is_optional else least, kept) > width:
            kept.remove(leaving)
    return kept, _share(natural, least, kept, width)


def _share(natural: list[int], least: list[int], kept: list[int], width: int) -> list[int]:
    """Return the columns' widths: those that can be cut share what is left of the width, from the left."""
    widths, room = list(least), max(0, width - _total(least, kept))
    for i in kept:
        widths[i] += min(room, natural[i] - least[i])
        room -= widths[i] - least[i]
    return widths


def as_html(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table for a notebook; cells may be any text."""
    from html import escape

    def line(tag: str, cells: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(safe_line(cell))}</{tag}>" for cell in cells) + "</tr>"

    return "".join(["<table>", line("th", names), *(line("td", row) for row in rows), "</table>"])


def cell_width(text: str) -> int:
    """Return the number of terminal cells of a text: two for a wide letter, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in text)


def cut(text: str, width: int) -> str:
    """Return the text, cut to a width with ``…`` if it is wider."""
    if cell_width(text) <= width:
        return text
    room, kept = width - 1, []
    for letter in text:
        room -= cell_width(letter)
        if room < 0:
            break
        kept.append(letter)
    return "".join(kept) + "…" if width > 0 else ""


def _leaving(columns: Sequence[Column], by_column: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns that may be dropped, in that order: empty ones first, then the least important."""
    may = [i for i, column in enumerate(columns) if column.leaves]
    return sorted(may, key=lambda i: (any(by_column[i][1:]), columns[i].leaves))


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[i] for i in kept) + len(GAP) * (len(kept) - 1)


def _padded(cell: str, width: int, right: bool) -> str:
    cell = cut(cell, width)
    blanks = " " * (width - cell_width(cell))
    return blanks + cell if right else cell + blanks
