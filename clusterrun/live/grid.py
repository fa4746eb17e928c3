"""A table that is brought up to date instead of being built anew, so that the cursor stays where it is."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import DataTable


class Grid(DataTable[Text]):
    """Rows of plain text, each known by its key; what a cell holds is never read as markup."""

    def __init__(self, columns: Sequence[str], *, id: str) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=True)
        self._names = list(columns)
        self._rows: dict[str, tuple[str, ...]] = {}

    def on_mount(self) -> None:
        for name in self._names:
            self.add_column(name, key=name)

    @property
    def chosen(self) -> str | None:
        """The key of the row under the cursor."""
        keys = list(self._rows)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None

    def show(self, rows: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Show these rows in this order."""
        new = {key: tuple(cells) for key, cells in rows}
        if list(new) == list(self._rows):
            self._update(new)
            return
        key, at = self.chosen, self.cursor_row
        self._rows = new
        self.clear()
        for row, cells in new.items():
            self.add_row(*map(Text, cells), key=row)
        keys = list(new)
        if keys:
            self.move_cursor(row=keys.index(key) if key in new else min(at, len(keys) - 1))

    def choose(self, key: str) -> None:
        """Put the cursor on a row, if it is there."""
        if key in self._rows:
            self.move_cursor(row=list(self._rows).index(key))

    def _update(self, new: dict[str, tuple[str, ...]]) -> None:
        for key, cells in new.items():
            before = self._rows[key]
            for name, cell, old in zip(self._names, cells, before, strict=True):
                if cell != old:
                    self.update_cell(key, name, Text(cell), update_width=len(cell) > len(old))
        self._rows = new
