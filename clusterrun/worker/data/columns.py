"""The columns of a table of labelled rows: their cells, which hold numbers, and what is doubtful about one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...base.errors import WorkerError, suggestion
from ...base.units import plural
from . import sources
from .conversations import Malformed
from .formats import excerpt
from .sources import Rows

if TYPE_CHECKING:
    from .targets import Formatter

SAMPLED_ROWS = 100  # rows checked for whether a column is text
JUDGED_ROWS = 10_000  # rows checked for what a column holds
MOSTLY = 0.9  # share of a column's cells that are numbers in a column of numbers
MOST_GRADES = 20  # different fractions that can be classes, such as ratings by halves; more are measurements
FEW_GRADES = 5  # so many can be classes in a table of a few rows too
JOINS = "|;,"  # characters that join several labels in a cell
DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def number_in(values: Mapping[str, Any], column: str) -> float | None:
    """Return the number in a cell, None for an empty one; raises Malformed for anything else."""
    cell = cell_of(values, column)
    if not cell:
        return None
    if not DECIMAL.fullmatch(cell) or math.isinf(float(cell)):
        raise Malformed(f"{excerpt(cell)} in {column!r} is not a number")
    return float(cell)


def cell_of(values: Mapping[str, Any], column: str) -> str:
    """Return a cell as text, stripped; a number as it is written in JSON."""
    value = values.get(column)
    if value is None or value != value:  # pandas writes NaN for an empty cell
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise Malformed(f"{column!r} has type {type(value).__name__}, neither text nor a number")
    return str(value).strip()


def require_columns(
    rows: Rows, text_cols: Sequence[str], target_cols: Sequence[str], what: str, number_cols: Sequence[str] = ()
) -> None:
    """Raise WorkerError for missing columns, with those that exist."""
    columns = sources.list_columns(rows)
    if not target_cols:
        raise WorkerError(
            f"set target_cols to the columns of {what} that the model should predict; {columns}", status=2
        )
    for name in (*target_cols, *number_cols, *text_cols):
        if name not in rows.columns:
            hint = _column_hint(name, rows, text_cols, target_cols)
            if number_cols and name in text_cols:
                hint = f"{hint} (if the numbers are all that there is, set text_cols=[])"
            raise WorkerError(f"no column {name!r} in {what}{hint}; {columns}", status=2)


def _column_hint(name: str, rows: Rows, text_cols: Sequence[str], target_cols: Sequence[str]) -> str:
    """Return what may be meant by a column that is not there, in parentheses."""
    parts = [part.strip() for part in name.split(",")]
    if len(parts) > 1 and set(parts) <= set(rows.columns):
        key = _setting_of(name, text_cols, target_cols)
        several = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
        return f" (to name several columns, write {key}='{several}')"
    texts = [column for column in rows.columns if column not in target_cols and _is_text(rows, column)]
    is_clear = name in text_cols and len(texts) == 1
    return f" (did you mean {texts[0]!r}?)" if is_clear else suggestion(name, rows.columns)


def _setting_of(name: str, text_cols: Sequence[str], target_cols: Sequence[str]) -> str:
    if name in target_cols:
        return "target_cols"
    return "text_cols" if name in text_cols else "number_cols"


def _is_text(rows: Rows, column: str) -> bool:
    cells = [cell for row in rows.rows[:SAMPLED_ROWS] if (cell := row.values.get(column)) not in (None, "")]
    return bool(cells) and all(isinstance(cell, str) and any(map(str.isalpha, cell)) for cell in cells)


def find_measured(rows: Rows, formatter: Formatter, target_cols: Sequence[str]) -> frozenset[str]:
    """Return the targets whose numbers are predicted; raises WorkerError (status 2) if one does not fit the objective.

    By "auto" these are the ones that hold measurements, by "regression" all, else none.
    """
    if formatter.is_set or formatter.parts > 1:
        return frozenset()
    return frozenset(target for target in target_cols if _is_measured(target, filled_cells(rows, target), formatter))


def _is_measured(target: str, cells: Sequence[str], formatter: Formatter) -> bool:
    measurements = _measurements(cells)
    if formatter.objective == "classes" and measurements:
        raise WorkerError(
            f"target {target!r} holds {measurements}, and objective=classes learns each as a class: omit it to predict"
            " the number, or make a column with the range of each number the target",
            status=2,
        )
    if formatter.objective != "regression":
        return bool(measurements)
    if not _numbers(cells):
        words = ", ".join(excerpt(cell) for cell in cells[:3])
        raise WorkerError(
            f"target {target!r} holds words ({words}), and objective=regression predicts numbers: omit it to predict"
            " classes",
            status=2,
        )
    return True


def _measurements(cells: Sequence[str]) -> str:
    """Return in words that these are measurements: most numbers are rare, and not whole; empty if they are not."""
    numbers = _numbers(cells)
    fractions = sorted({number for number in numbers if float(number) % 1}, key=float)
    different = len({float(number) for number in numbers})
    few = different <= FEW_GRADES or different * 2 <= len(cells)
    if not fractions or (few and different <= MOST_GRADES):
        return ""
    rows = plural(len(cells), "row")
    return f"measurements ({', '.join(fractions[:3])}, …: {different:,} different numbers in {rows})"


def find_doubts(rows: Rows, formatter: Formatter, target_cols: Sequence[str]) -> Iterator[str]:
    """Yield a line for each column that the model learns as something else than it looks like."""
    for column in formatter.columns:
        if column not in formatter.number_cols and _numbers(filled_cells(rows, column)):
            yield (
                f"text column {column!r} holds numbers, which are read as words: how large they are does not count; to"
                " let it count, name the column in number_cols"
            )
    for target in target_cols if formatter.parts == 1 else ():
        yield from _doubts_of_target(target, filled_cells(rows, target), formatter)


def _doubts_of_target(target: str, cells: Sequence[str], formatter: Formatter) -> Iterator[str]:
    if formatter.is_measured(target):
        if formatter.objective == "auto":
            yield f"target {target!r} holds {_measurements(cells)}: the number is predicted"
        return
    if formatter.is_set:
        cells = [label for cell in cells for label in formatter.answers(cell)]
    elif len(set(cells)) > MOST_GRADES and _numbers(cells):
        yield (
            f"target {target!r} holds {len(set(cells)):,} different numbers: each is a class, and how close two are"
            " does not count; to predict the number, set objective=regression"
        )
    yield from _doubts_of_joins(target, set(cells))


def _doubts_of_joins(target: str, classes: set[str]) -> Iterator[str]:
    for mark in JOINS:
        joined, labels = _joined(classes, mark)
        if len(joined) > len(labels):
            yield (
                f"target {target!r} joins labels with {mark!r} ({joined[0]}): each of {len(joined):,} combinations"
                f" of {len(labels):,} labels is a class; to learn the labels, set objective=set separator='{mark}'"
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
            cells.append(cell_of(row.values, column))
        except Malformed:
            continue
    return [cell for cell in cells if cell]


def _numbers(cells: Sequence[str]) -> list[str]:
    """Return the cells that are numbers if nearly all are, else none."""
    numbers = [cell for cell in cells if DECIMAL.fullmatch(cell)]
    return numbers if len(numbers) >= max(1.0, MOSTLY * len(cells)) else []
