"""A table that is updated in place, so that the cursor stays where it is; and a log."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text
from textual.widgets import DataTable, Log


class Grid(DataTable[Text]):
    """Rows of plain text, each with a key; a cell is never read as markup.

    Column widths are computed here: textual measures new rows only once it is idle, and a cell that is drawn before
    that stays cut to the old width.
    """

    def __init__(self, columns: Sequence[str], *, id: str) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=True)
        self._names = list(columns)
        self._rows: dict[str, tuple[str, ...]] = {}
        self._widths = [cell_len(name) for name in columns]

    def on_mount(self) -> None:
        for name, width in zip(self._names, self._widths, strict=True):
            self.add_column(name, width=width, key=name)

    @property
    def selected(self) -> str | None:
        """The key of the row under the cursor."""
        keys = list(self._rows)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None

    def show(self, rows: Sequence[tuple[str, Sequence[str]]], columns: Sequence[str] | None = None) -> None:
        """Show these rows in this order, with new column headings if given."""
        new = {key: tuple(cells) for key, cells in rows}
        names = list(columns) if columns is not None else self._names
        widths = [max(map(cell_len, column)) for column in zip(names, *new.values(), strict=True)]
        if names == self._names and list(new) == list(self._rows) and _fit(widths, self._widths):
            self._update(new)
            return
        key, at = self.selected, self.cursor_row
        # rebuild the table if a column gets wider: to widen a column, textual measures every row for each cell
        self._names, self._widths, self._rows = names, widths, new
        self.clear(columns=True)
        self.on_mount()
        for row, cells in new.items():
            self.add_row(*map(Text, cells), key=row)
        keys = list(new)
        if keys:
            self.move_cursor(row=keys.index(key) if key in new else min(at, len(keys) - 1))

    def select(self, key: str) -> None:
        """Move the cursor to a row, if it exists."""
        if key in self._rows:
            self.move_cursor(row=list(self._rows).index(key))

    def _update(self, new: dict[str, tuple[str, ...]]) -> None:
        for key, cells in new.items():
            before = self._rows[key]
            for name, cell, old in zip(self._names, cells, before, strict=True):
                if cell != old:
                    self.update_cell(key, name, Text(cell))
        self._rows = new


class Tail(Log):
    """The end of a log; a scrolled view stays in place until the window is resized."""

    def on_resize(self) -> None:
        self.scroll_end(animate=False, x_axis=False)


def _fit(widths: Sequence[int], columns: Sequence[int]) -> bool:
    return all(width <= known for width, known in zip(widths, columns, strict=True))
