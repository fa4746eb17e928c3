"""Labelled rows: parse them into texts, numbers and answers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...base.errors import WorkerError, suggestion
from ...base.units import plural
from . import columns, sources
from .conversations import Malformed, refuse
from .formats import excerpt, shown

NAMED = ("plain", "hisco")
DIGITS = 5
NO_CODE = ("-1", "-2", "-3")
SETS = ("set", "mixed")  # the objectives with one set of labels for all targets


@dataclass(frozen=True)
class Formatter:
    """How to parse a row: `columns` make the text, and `answers` splits a target's cell into `parts` classes.

    The `number_cols` are numbers beside the text. By the objective "set" or "mixed" a cell is any number of labels, and
    those of all targets are one set. The targets in `measured` are numbers to predict; None: not known yet.
    """

    columns: tuple[str, ...]
    text: Callable[[Sequence[str]], str]
    answers: Callable[[str], tuple[str, ...]] = lambda cell: (cell,)
    parts: int = 1
    objective: str = "auto"
    number_cols: tuple[str, ...] = ()
    measured: frozenset[str] | None = None

    @property
    def is_set(self) -> bool:
        """Whether a row has one set of labels."""
        return self.objective in SETS

    def is_measured(self, target: str) -> bool:
        """Return whether the numbers of a target are predicted."""
        return self.measured is not None and target in self.measured


class Example(NamedTuple):
    """A text and its class in each group (None where the target's cell is empty); `where` is the place of its row.

    Of a set, `answers` are the labels. `numbers` are those of the number columns.
    """

    text: str
    answers: tuple[str | None, ...]
    where: str
    numbers: tuple[float | None, ...] = ()


class Table(NamedTuple):
    """The examples of a table, how many bad rows were skipped, and what is doubtful about its columns.

    `formatter` is the one they were read with, which knows the measured targets.
    """

    examples: list[Example]
    skipped: int
    doubts: list[str]
    formatter: Formatter


def find_formatter(formatter: str, text_cols: Sequence[str]) -> Formatter:
    """Return the formatter of that name.

    "plain" joins the text columns with spaces, and a cell is a class. "hisco" does so too, and a cell is a HISCO code:
    five digits, each with classes of its own, leading zeros added; for "-1", "-2" and "-3" all five are that. A text
    with columns in braces, such as "{title}: {body}", is the text of a row. Raises WorkerError (status 2) for others.
    """
    if not {"{", "}"}.isdisjoint(formatter):
        return _template(formatter)
    if formatter not in NAMED:
        known = " or ".join(NAMED)
        raise WorkerError(
            f"unknown formatter {formatter!r}{suggestion(formatter, NAMED)}: use {known}, or columns in braces, such as"
            " '{title}: {body}'",
            status=2,
        )
    plain = Formatter(tuple(text_cols), lambda cells: " ".join(cell for cell in cells if cell))
    return plain if formatter == "plain" else Formatter(plain.columns, plain.text, _hisco, DIGITS)


def formatter_of(config: Any) -> Formatter:
    """Return how the rows of the task `classify` are parsed; raises WorkerError (status 2) as find_formatter() does."""
    found = find_formatter(config.formatter, config.text_cols)
    number_cols = tuple(filter(None, config.number_cols))
    found = dataclasses.replace(found, objective=config.objective, number_cols=number_cols)
    if not found.is_set:
        return found
    split_code, separator = found.answers, config.separator

    def labels(cell: str) -> tuple[str, ...]:
        parts = cell.split(separator) if separator else [cell]
        return tuple(whole_code(split_code(part.strip())) for part in parts if part.strip())

    return dataclasses.replace(found, answers=labels, parts=1)


def whole_code(parts: Sequence[str]) -> str:
    """Return the code whose digits these are; a code without digits stands for all of them."""
    return parts[0] if parts[0] in NO_CODE else "".join(parts)


def _template(formatter: str) -> Formatter:
    pieces = re.split(r"\{([^{}]*)\}", formatter)
    literals, columns = pieces[::2], tuple(pieces[1::2])
    if not all(columns) or any("{" in piece or "}" in piece for piece in literals):
        raise WorkerError(f"formatter={formatter}: write a column name in each pair of braces", status=2)
    return Formatter(columns, lambda cells: _interleave(literals, cells).strip())


def read_examples(
    data: Sequence[str], formatter: Formatter, target_cols: Sequence[str], *, on_bad_row: str, most: int | None = None
) -> Table:
    """Read the rows of files, globs or built-in data; with `most` only so many of each.

    A row without a text or a number to learn from, or without an answer for any target, is a bad one. Raises
    WorkerError for a column that is not there or whose values do not fit the objective (status 2), and for a bad row
    unless `on_bad_row` is "skip".
    """
    rows = sources.read_rows(data, on_bad_row=on_bad_row, most=most)
    what = ", ".join(shown(name) for name in data[:3])
    columns.require_columns(rows, formatter.columns, target_cols, what, formatter.number_cols)
    if formatter.measured is None:
        formatter = dataclasses.replace(formatter, measured=columns.find_measured(rows, formatter, target_cols))
    examples = []
    for row in rows.rows:
        try:
            examples.append(_example(row.values, formatter, target_cols, row.where))
        except Malformed as problem:
            refuse(row.where, problem, on_bad_row)
    skipped = rows.skipped + len(rows.rows) - len(examples)
    if not examples:
        raise WorkerError(f"no usable row in {what}: {plural(skipped, 'bad row')} skipped")
    return Table(examples, skipped, list(columns.find_doubts(rows, formatter, target_cols)), formatter)


def _interleave(literals: Sequence[str], cells: Sequence[str]) -> str:
    return "".join(literal + cell for literal, cell in zip(literals, [*cells, ""], strict=True))


def _hisco(cell: str) -> tuple[str, ...]:
    code = cell.removesuffix(".0")  # a column of numbers with gaps becomes one of floats
    if code in NO_CODE:
        return (code,) * DIGITS
    if not re.fullmatch(rf"[0-9]{{1,{DIGITS}}}", code):
        raise Malformed(
            f"{excerpt(cell)} is not a HISCO code: expected up to five digits, or one of {', '.join(NO_CODE)}"
        )
    return tuple(code.zfill(DIGITS))


def _example(values: dict[str, Any], formatter: Formatter, target_cols: Sequence[str], where: str) -> Example:
    text, numbers = seen(values, formatter)
    answers = (_labels if formatter.is_set else _classes)(values, formatter, target_cols)
    if answers is None:
        raise Malformed(f"no value in {', '.join(map(repr, target_cols))}")
    return Example(text, tuple(answers), where, numbers)


def seen(values: Mapping[str, Any], formatter: Formatter) -> tuple[str, tuple[float | None, ...]]:
    """Return what the model sees of a row: its text, and its numbers; raises Malformed if there is neither."""
    cells = [columns.cell_of(values, column) for column in formatter.columns]
    numbers = tuple(columns.number_in(values, column) for column in formatter.number_cols)
    if not any(cells) and numbers.count(None) == len(numbers):
        raise Malformed(f"no text in {', '.join(map(repr, formatter.columns + formatter.number_cols))}")
    return formatter.text(cells), numbers


def _classes(values: dict[str, Any], formatter: Formatter, target_cols: Sequence[str]) -> list[str | None] | None:
    """Return the class in each group, and a number as its text; None if the row has none at all."""
    answers: list[str | None] = []
    for target in target_cols:
        if formatter.is_measured(target):
            columns.number_in(values, target)  # refuses the row if it is none
        cell = columns.cell_of(values, target)
        answers += formatter.answers(cell) if cell else (None,) * formatter.parts
    return answers if any(answers) else None


def _labels(values: dict[str, Any], formatter: Formatter, target_cols: Sequence[str]) -> list[str | None] | None:
    """Return the different labels of a row, sorted; None if all cells are empty, which a list without labels is not.

    A cell is a list of labels, or a text that joins them.
    """
    labels: set[str] = set()
    known = False
    for target in target_cols:
        value = values.get(target)
        known |= isinstance(value, list)
        for part in value if isinstance(value, list) else [value]:
            labels.update(formatter.answers(columns.cell_of({target: part}, target)))
    return [*sorted(labels)] if labels or known else None
