"""Labelled rows: parse them into texts and answers, and map classes to the model's outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ...base.errors import WorkerError, suggestion
from ...base.units import plural
from . import sources
from .conversations import Malformed, refuse
from .formats import excerpt, shown
from .sources import Rows

NAMED = ("plain", "hisco")
DIGITS = 5
NO_CODE = ("-1", "-2", "-3")
MOST_CLASSES = 10_000
SAMPLED_ROWS = 100  # rows checked for whether a column is text
JUDGED_ROWS = 10_000  # rows checked for what a column holds
MOSTLY = 0.9  # share of a column's cells that are numbers in a column of numbers
MOST_GRADES = 20  # different fractions that can be classes, such as ratings by halves; more are measurements
FEW_GRADES = 5  # so many can be classes in a table of a few rows too
JOINS = "|;,"  # characters that join several labels in a cell
NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")

UNSEEN, MISSING = -1, -2  # instead of a class number: a class without training rows; an empty cell


@dataclass(frozen=True)
class Formatter:
    """How to parse a row: `columns` make the text, and `answers` splits a target's cell into `parts` classes."""

    columns: tuple[str, ...]
    text: Callable[[Sequence[str]], str]
    answers: Callable[[str], tuple[str, ...]] = lambda cell: (cell,)
    parts: int = 1


class Example(NamedTuple):
    """A text and its class in each group (None where the target's cell is empty); `where` is the place of its row."""

    text: str
    answers: tuple[str | None, ...]
    where: str


@dataclass(frozen=True)
class Group:
    """Exclusive classes, and the first of the model's outputs for them, in this order.

    A target has one group, a HISCO code one for each digit; `name` is the target's, with a number where it has more.
    """

    name: str
    target: str
    classes: tuple[str, ...]
    start: int

    @property
    def end(self) -> int:
        """One past the last output."""
        return self.start + len(self.classes)


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


def _template(formatter: str) -> Formatter:
    pieces = re.split(r"\{([^{}]*)\}", formatter)
    literals, columns = pieces[::2], tuple(pieces[1::2])
    if not all(columns) or any("{" in piece or "}" in piece for piece in literals):
        raise WorkerError(f"formatter={formatter}: write a column name in each pair of braces", status=2)
    return Formatter(columns, lambda cells: _interleave(literals, cells).strip())


def read_examples(
    data: Sequence[str], formatter: Formatter, target_cols: Sequence[str], *, on_bad_row: str, most: int | None = None
) -> tuple[list[Example], int, list[str]]:
    """Read the rows of files, globs or built-in data; with `most` only so many of each.

    Return them, how many bad ones were skipped, and what is doubtful about the columns. A row without a text, or
    without a class for any target, is a bad one. Raises WorkerError for a column that is not there or whose values are
    no classes (status 2), and for a bad row unless `on_bad_row` is "skip".
    """
    rows = sources.read_rows(data, on_bad_row=on_bad_row, most=most)
    what = ", ".join(shown(name) for name in data[:3])
    require_columns(rows, formatter.columns, target_cols, what)
    if formatter.parts == 1:
        for target in target_cols:
            _require_classes(target, filled_cells(rows, target))
    examples = []
    for row in rows.rows:
        try:
            examples.append(_example(row.values, formatter, target_cols, row.where))
        except Malformed as problem:
            refuse(row.where, problem, on_bad_row)
    if not examples:
        raise WorkerError(f"no usable row in {what}: {plural(rows.skipped + len(rows.rows), 'bad row')} skipped")
    doubts = list(find_doubts(rows, formatter, target_cols))
    return examples, rows.skipped + len(rows.rows) - len(examples), doubts


def _require_classes(target: str, cells: Sequence[str]) -> None:
    """Raise WorkerError (status 2) for measurements: as classes, no value is nearer to another, and most are rare."""
    numbers = _numbers(cells)
    fractions = sorted({number for number in numbers if float(number) % 1}, key=float)
    different = len({float(number) for number in numbers})
    few = different <= FEW_GRADES or different * 2 <= len(cells)
    if not fractions or (few and different <= MOST_GRADES):
        return
    raise WorkerError(
        f"target {target!r} holds measurements ({', '.join(fractions[:3])}, …: {different:,} different numbers in"
        f" {plural(len(cells), 'row')}), but classify predicts classes, not numbers: add a column with the range of"
        " each number, such as low or high, and make that the target",
        status=2,
    )


def find_doubts(rows: Rows, formatter: Formatter, target_cols: Sequence[str]) -> Iterator[str]:
    """Yield a line for each column that the model learns as something else than it looks like."""
    for column in formatter.columns:
        if _numbers(filled_cells(rows, column)):
            yield f"text column {column!r} holds numbers, which are read as words: how large they are does not count"
    for target in target_cols if formatter.parts == 1 else ():
        cells = filled_cells(rows, target)
        classes = set(cells)
        if len(classes) > MOST_GRADES and _numbers(cells):
            found = f"target {target!r} holds {len(classes):,} different numbers"
            yield f"{found}: each is a class, and how close two are does not count"
        for mark in JOINS:
            joined, labels = _joined(classes, mark)
            if len(joined) > len(labels):
                yield (
                    f"target {target!r} joins labels with {mark!r} ({joined[0]}): each of {len(joined):,} combinations"
                    f" of {len(labels):,} labels is a class; to learn the labels, give each a column and name all"
                    " columns in target_cols"
                )


def _joined(classes: Iterable[str], mark: str) -> tuple[list[str], set[str]]:
    """Return the classes that contain the mark, and the different texts between the marks."""
    joined = sorted(name for name in classes if mark in name)
    return joined, {part.strip() for name in joined for part in name.split(mark)}


def filled_cells(rows: Rows, column: str) -> list[str]:
    """Return the cells of a column as texts, without empty ones and what is neither text nor a number."""
    cells = []
    for row in rows.rows[:JUDGED_ROWS]:
        try:
            cells.append(_cell(row.values, column))
        except Malformed:
            continue
    return [cell for cell in cells if cell]


def _numbers(cells: Sequence[str]) -> list[str]:
    """Return the cells that are numbers if nearly all are, else none."""
    numbers = [cell for cell in cells if NUMBER.fullmatch(cell)]
    return numbers if len(numbers) >= max(1.0, MOSTLY * len(cells)) else []


def find_groups(examples: Sequence[Example], target_cols: Sequence[str], parts: int) -> tuple[Group, ...]:
    """Return the groups of classes that these (training) examples have, `parts` for each target.

    Raises WorkerError for a target that always has the same class, or more than MOST_CLASSES (status 2).
    """
    columns = [set(column) - {None} for column in zip(*(example.answers for example in examples), strict=True)]
    groups: list[Group] = []
    for number, target in enumerate(target_cols):
        mine = columns[number * parts : (number + 1) * parts]
        most = max(map(len, mine))
        if most <= 1:
            has = "only one value" if most else "no value"
            raise WorkerError(f"nothing to learn: target {target!r} has {has} in the training rows")
        if most > MOST_CLASSES:
            raise WorkerError(
                f"target {target!r} has {most:,} classes in {len(examples):,} rows, more than the limit of"
                f" {MOST_CLASSES:,}: is the target an identifier or a number?",
                status=2,
            )
        for part, classes in enumerate(mine, 1):
            start = groups[-1].end if groups else 0
            name = target if parts == 1 else f"{target}.{part}"
            groups.append(Group(name, target, tuple(sorted(filter(None, classes))), start))
    return tuple(groups)


def labels(examples: Sequence[Example], groups: Sequence[Group]) -> tuple[list[list[int]], list[str]]:
    """Return a class number, MISSING or UNSEEN per row and group, and the names of the unseen classes."""
    numbers = [{None: MISSING} | {name: number for number, name in enumerate(group.classes)} for group in groups]
    table = []
    unseen: dict[str, None] = {}
    for example in examples:
        row = [of.get(answer, UNSEEN) for of, answer in zip(numbers, example.answers, strict=True)]
        if UNSEEN in row:
            unseen |= {
                f"{g.name}={a}": None for g, a, n in zip(groups, example.answers, row, strict=True) if n == UNSEEN
            }
        table.append(row)
    return table, list(unseen)


def describe(groups: Sequence[Group]) -> dict[str, list[dict[str, Any]]]:
    """Return the outputs and classes of each target, as JSON; groups_of() parses it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        found.setdefault(group.target, []).append({**asdict(group), "end": group.end})
    return found


def groups_of(described: dict[str, list[dict[str, Any]]]) -> tuple[Group, ...]:
    """Return the groups that describe() was given."""
    return tuple(
        Group(one["name"], one["target"], tuple(one["classes"]), one["start"])
        for of_target in described.values()
        for one in of_target
    )


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
    cells = [_cell(values, column) for column in formatter.columns]
    if not any(cells):
        raise Malformed(f"no text in {', '.join(map(repr, formatter.columns))}")
    answers: list[str | None] = []
    for target in target_cols:
        cell = _cell(values, target)
        answers += formatter.answers(cell) if cell else (None,) * formatter.parts
    if not any(answers):
        raise Malformed(f"no value in {', '.join(map(repr, target_cols))}")
    return Example(formatter.text(cells), tuple(answers), where)


def _cell(values: dict[str, Any], column: str) -> str:
    """Return a cell as text, stripped; a number as it is written in JSON."""
    value = values.get(column)
    if value is None or value != value:  # pandas writes NaN for an empty cell
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise Malformed(f"{column!r} has type {type(value).__name__}, neither text nor a number")
    return str(value).strip()


def require_columns(rows: Rows, text_cols: Sequence[str], target_cols: Sequence[str], what: str) -> None:
    """Raise WorkerError for missing columns, with those that exist."""
    columns = sources.list_columns(rows)
    if not target_cols:
        raise WorkerError(
            f"set target_cols to the columns of {what} that the model should predict; {columns}", status=2
        )
    for name in (*target_cols, *text_cols):
        if name not in rows.columns:
            hint = _column_hint(name, rows, text_cols, target_cols)
            raise WorkerError(f"no column {name!r} in {what}{hint}; {columns}", status=2)


def _column_hint(name: str, rows: Rows, text_cols: Sequence[str], target_cols: Sequence[str]) -> str:
    """Return what may be meant by a column that is not there, in parentheses."""
    parts = [part.strip() for part in name.split(",")]
    if len(parts) > 1 and set(parts) <= set(rows.columns):
        key = "target_cols" if name in target_cols else "text_cols"
        several = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
        return f" (to name several columns, write {key}='{several}')"
    texts = [column for column in rows.columns if column not in target_cols and _is_text(rows, column)]
    is_clear = name in text_cols and len(texts) == 1
    return f" (did you mean {texts[0]!r}?)" if is_clear else suggestion(name, rows.columns)


def _is_text(rows: Rows, column: str) -> bool:
    cells = [cell for row in rows.rows[:SAMPLED_ROWS] if (cell := row.values.get(column)) not in (None, "")]
    return bool(cells) and all(isinstance(cell, str) and any(map(str.isalpha, cell)) for cell in cells)
