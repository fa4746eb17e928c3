"""The parameter sets of a sweep: read --grid, --zip and a CSV file, and fill ``{name}`` in arguments."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from clusterrun.base.errors import RequestError
from clusterrun.base.job import parse_tasks
from clusterrun.base.units import plural
from clusterrun.jobspec.fields import check_text
from clusterrun.run_folder.safe_files import read_plain
from clusterrun.submit.request import Request

MOST = 10_000
"""The maximum number of parameter sets of a sweep."""
INDEX = "array_index"
"""The name in braces for a task's index."""
VARIABLE = "CLUSTERRUN_SWEEP_"
"""The beginning of the variables in which a task finds its parameters."""

Axis = tuple[str, tuple[str, ...]]
"""A parameter's name and its values."""
Set = Mapping[str, str]
"""The values of one task, by name."""
_NAME = re.compile(rf"(?!{INDEX}\Z)[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_RANGE = re.compile(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})", re.ASCII)
_FRACTION = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_FRACTIONS = re.compile(rf"({_FRACTION})\.\.({_FRACTION})", re.ASCII)
_NUMBERS = re.compile(r"\s*[-+.\d][-+.\deE]*(?:\s+[-+.\d][-+.\deE]*)+\s*", re.ASCII)
_SEPARATOR = re.compile(r",(?![^\[\](){}]*[\])}])")
"""A comma between two values: none inside brackets (``betas=[0.9,0.95],[0.9,0.99]`` has two values)."""
_LIST = re.compile(r"\[[^\[\]]*\]|\([^()]*\)")
_ARRAY = re.compile(r"([^%]*)(?:%0*([1-9][0-9]{0,8}))?", re.ASCII)
_BRACES = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)


def parse_axis(text: str, option: str) -> Axis:
    """Parse ``lr=1e-4,3e-4`` or ``seed=0..4`` (with both ends); a list in brackets is one value.

    Raises RequestError; ``option`` is its source.
    """
    name, _, values = text.partition("=")
    if not values:
        raise RequestError(f"{option} must be NAME=VALUE,VALUE…, not {text[:60]!r}", hint=f"{option} lr=1e-4,3e-4")
    if _LIST.fullmatch(values):
        message = f"{option}: {text[:60]} is one value, the list {values[:60]}"
        raise RequestError(message, hint=f"for one run per value: {option} {name}={values[1:-1].replace(' ', '')}")
    return name, tuple(value for part in _SEPARATOR.split(values) for value in _values(part, option))


def _values(part: str, option: str) -> Iterable[str]:
    if _NUMBERS.fullmatch(part):
        hint = f"separate values with commas: {','.join(part.split())}"
        raise RequestError(f"{option}: {part[:60]!r} is one value, with blanks between its numbers", hint=hint)
    match = _RANGE.fullmatch(part)
    if match is None:
        _refuse_range_of_fractions(part, option)
        return [part]
    first, last = int(match[1]), int(match[2])
    if last < first or last - first >= MOST:
        message = f"{option}: the range {part} must be ascending and have at most {MOST} numbers"
        raise RequestError(message, hint="for example seed=0..4")
    return map(str, range(first, last + 1))


def _refuse_range_of_fractions(part: str, option: str) -> None:
    """Raise RequestError for ``0.1..0.4``: how far apart its numbers are is not said."""
    if match := _FRACTIONS.fullmatch(part):
        message = f"{option}: {part[:60]} is no range; `..` is for whole numbers, such as 0..4"
        raise RequestError(message, hint=f"write each value: {match[1]},…,{match[2]}")


def refuse_separate_values(words: Sequence[str], texts: Sequence[str], option: str) -> None:
    """Raise RequestError for values behind blanks, as in ``--grid lr 0.1 0.2``, where ``words`` has them."""
    values = [word for word in words if re.fullmatch(_FRACTION, word, re.ASCII)]
    for text in texts:
        if values and "=" not in text:
            message = f"{option} must be NAME=VALUE,VALUE…, not {text[:60]!r} and separate values"
            raise RequestError(message, hint=f"{option} {text}={','.join(values)}")


def read_csv(text: str, source: str) -> list[Set]:
    """Return a set for each row of a CSV file whose first line has the names. Raises RequestError with the line."""
    reader = csv.reader(io.StringIO(text), skipinitialspace=True, strict=True)
    rows = filter(None, reader)
    try:
        names = next(rows, [])
        sets = [_row(names, row, f"{source}:{reader.line_num}") for row in rows]
    except csv.Error as error:
        hint = "separate values with commas, and put double quotes around a value that contains a comma"
        raise RequestError(f"{source}:{reader.line_num}: {error}", hint=hint) from None
    if not sets:
        hint = "write the parameter names on the first line, and one parameter set on each following line"
        raise RequestError(f"{source} has no rows", hint=hint)
    if len(set(names)) < len(names):
        raise RequestError(f"{source}:1: a column name appears twice", hint="give each column a unique name")
    return sets


def _row(names: Sequence[str], values: Sequence[str], place: str) -> Set:
    if len(values) != len(names):
        message = f"{place}: expected {plural(len(names), 'value')}"
        raise RequestError(message, hint="write one value for each column")
    return dict(zip(names, values, strict=True))


def read_grid(grid: Mapping[str, Iterable[object]], source: str) -> list[Axis]:
    """Return the values of each parameter as texts; a text is the job file's spelling. Raises RequestError."""
    axes: list[Axis] = []
    for name, values in grid.items():
        if isinstance(values, str):
            axes.append(parse_axis(f"{name}={values}", source))
        elif not isinstance(values, Iterable) or not (texts := tuple(map(str, values))):
            raise RequestError(f"grid: {name} has no values", hint=f'give a list: grid={{"{name}": [1, 2]}}')
        else:
            axes.append((str(name), texts))
    return axes


def read_sets(rows: Sequence[Mapping[str, object]] | None) -> list[Set]:
    """Return parameter sets as texts, each in the first one's order. Raises RequestError."""
    hint = 'give every row the same parameter names: rows=[{"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 1}]'
    if rows is None:
        return []
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise RequestError("rows: expected parameter sets", hint=hint)
    sets: list[Set] = []
    for row in rows:
        if row.keys() != rows[0].keys():
            raise RequestError("rows: the rows have different parameter names", hint=hint)
        sets.append({str(name): str(row[name]) for name in rows[0]})
    return sets


def parameter_sets(
    request: Request, grid: Sequence[Axis], together: Sequence[Axis], rows: Sequence[Set],
    at_once: int | None,
) -> tuple[list[Set], int | None]:  # fmt: skip
    """Return the parameter sets and how many may run at once: as given, else of the job file's table ``[sweep]``."""
    table = request.sweep
    if not (grid or together or rows):
        grid, together = read_grid(table.grid, table.source), read_grid(table.together, table.source)
        rows = read_rows(Path(table.file), f"{table.source}: {table.file}") if table.file else ()
    return combine(grid, together, rows), table.max_running if at_once is None else at_once


def read_rows(path: Path, source: str) -> list[Set]:
    """Return the parameter sets of a CSV file. Raises RequestError with its ``source``."""
    try:
        return read_csv(read_plain(path, trusted=False).decode("utf-8-sig"), source)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise RequestError(f"{source}: {why}", hint="give the path of a CSV file") from error


def combine(grid: Sequence[Axis], together: Sequence[Axis], rows: Sequence[Set]) -> list[Set]:
    """Return all combinations of the grid's values with the zipped ones and the rows of a file, the last fastest.

    Raises RequestError for names and values that are invalid, and for two equal sets.
    """
    hint = "clusterrun sweep JOB --grid lr=1e-4,3e-4 --grid seed=0..4"
    names = [*itertools.chain(*rows[:1]), *(name for name, _ in (*together, *grid))]
    if not names:
        raise RequestError("no parameters were given", hint=hint)
    _check_names(names)
    blocks = list(filter(None, (rows, _zipped(*together), *map(_zipped, grid))))
    count = math.prod(map(len, blocks))
    if count > MOST:
        raise RequestError(f"the sweep has {count} parameter sets; the limit is {MOST}", hint=hint)
    sets: list[Set] = [functools.reduce(operator.or_, parts) for parts in itertools.product(*blocks)]
    _check_sets(sets)
    return sets


def _zipped(*axes: Axis) -> list[Set]:
    """Return the first values of all parameters as a set, then the second ones; raises RequestError for a lack."""
    columns = dict(axes)
    if len(set(map(len, columns.values()))) > 1:
        shown = ", ".join(f"{name} has {len(values)}" for name, values in columns.items())
        message = f"--zip needs the same number of values for each parameter: {shown}"
        raise RequestError(message, hint="use --grid for all combinations")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _check_sets(sets: Sequence[Set]) -> None:
    """Raise RequestError for a value that a job cannot get, and for two equal sets."""
    seen = set[tuple[str, ...]]()
    for each in sets:
        for name, value in each.items():
            check_text(value, f"parameter {name}", "sweep")
        values = tuple(each.values())
        if values in seen:
            raise RequestError(f"two equal parameter sets: {show(each)}", hint="remove one of them")
        seen.add(values)


def _check_names(names: Sequence[str]) -> None:
    upper = list(map(str.upper, names))
    for name in names:
        if not _NAME.fullmatch(name):
            raise RequestError(
                f"not a valid parameter name: {name[:40]!r}",
                hint="use letters, digits and _, and do not start with a digit; array_index is reserved",
            )
        if upper.count(name.upper()) > 1:
            raise RequestError(f"the parameter {name} is given twice", hint="use each name only once (case is ignored)")


def parse_array(text: str, size: int) -> tuple[list[int], int | None]:
    """Parse Slurm's ``0-99%8`` into the indexes and how many may run at once.

    ``size`` is Slurm's MaxArraySize. Raises RequestError.
    """
    match = _ARRAY.fullmatch(text)
    tasks = parse_tasks(match[1]) if match else None
    if match is None or not tasks:
        raise RequestError(f"--array: {text[:60]!r} is not a list of indexes", hint="for example 0-99, 1,3,7 or 0-99%8")
    indexes = sorted(set(tasks))
    if indexes[-1] >= size:
        raise RequestError(
            f"--array: index {indexes[-1]} is too large; this cluster allows at most {size - 1} (MaxArraySize={size})",
            hint="use `clusterrun sweep`, which splits large sweeps into several arrays",
        )
    if len(indexes) > MOST:
        raise RequestError(f"--array: {len(indexes)} tasks; the limit is {MOST}", hint="use a smaller array")
    return indexes, int(match[2]) if match[2] else None


def fill(text: str, values: Set) -> str:
    """Return a text with each ``{name}`` replaced; ``{{name}}`` becomes ``{name}``. Raises RequestError."""

    def replaced(match: re.Match[str]) -> str:
        if match[1]:
            return "{" + match[1] + "}"
        if match[2] not in values:
            known = ", ".join(f"{{{name}}}" for name in values)
            raise RequestError(f"unknown parameter {match[2]} in {text[:60]}",
                               hint=f"known: {known}; for literal braces, write {{{{{match[2]}}}}}")  # fmt: skip
        return values[match[2]]

    return _BRACES.sub(replaced, text)


def names_in(text: str) -> set[str]:
    """Return the names in braces."""
    return {name for _, name in _BRACES.findall(text) if name}


def show(values: Set) -> str:
    """Return a parameter set in one line: ``lr=1e-4 seed=0``."""
    return " ".join(f"{name}={value}" for name, value in values.items())
