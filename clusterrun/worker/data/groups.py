"""What a model's outputs mean: the classes, labels and numbers of the targets, and the answers of rows as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...base.errors import WorkerError
from .scales import scale_of
from .targets import Example, Formatter

MOST_CLASSES = 10_000
UNSEEN, MISSING = -1, -2  # instead of a class number: a class without training rows; an empty cell
CLASSES, SET, NUMBER = "classes", "set", "number"  # what the outputs of a group are


@dataclass(frozen=True)
class Group:
    """Exclusive classes, and the first of the model's outputs for them, in this order.

    A target has one group, a HISCO code one for each digit; `name` is the target's, with a number where it has more.
    `kind` SET: any of the classes. NUMBER: no classes, but one output, which is (number - `mean`) / `scale`.
    """

    name: str
    target: str
    classes: tuple[str, ...]
    start: int
    kind: str = CLASSES
    mean: float = 0.0
    scale: float = 1.0

    @property
    def end(self) -> int:
        """One past the last output."""
        return self.start + (1 if self.kind == NUMBER else len(self.classes))


def find_groups(examples: Sequence[Example], target_cols: Sequence[str], formatter: Formatter) -> tuple[Group, ...]:
    """Return the groups of classes, labels and numbers that these (training) examples have.

    Raises WorkerError for a target that always has the same class or number, or more than MOST_CLASSES (status 2).
    """
    rows = len(examples)
    if formatter.is_set:
        return (_set_group("+".join(target_cols), examples),)
    columns = list(zip(*(example.answers for example in examples), strict=True))
    groups: list[Group] = []
    for number, target in enumerate(target_cols):
        if formatter.is_measured(target):
            groups.append(_number_group(target, columns[number], groups))
            continue
        mine = [set(column) for column in columns[number * formatter.parts : (number + 1) * formatter.parts]]
        for part, classes in enumerate(_classes(target, mine, rows), 1):
            name = target if formatter.parts == 1 else f"{target}.{part}"
            groups.append(Group(name, target, classes, _next_output(groups)))
    return tuple(groups)


def _set_group(name: str, examples: Sequence[Example]) -> Group:
    known = {label for example in examples for label in example.answers}
    (classes,) = _classes(name, [known], len(examples))
    return Group(name, name, classes, 0, SET)


def _next_output(groups: Sequence[Group]) -> int:
    return groups[-1].end if groups else 0


def _classes(target: str, columns: Sequence[set[str | None]], rows: int) -> list[tuple[str, ...]]:
    """Return the sorted classes of a target's groups; raises WorkerError if they are too few or too many to learn."""
    found = [tuple(sorted(filter(None, classes))) for classes in columns]
    most = max(map(len, found))
    if most <= 1:
        has = "only one value" if most else "no value"
        raise WorkerError(f"nothing to learn: target {target!r} has {has} in the training rows")
    if most > MOST_CLASSES:
        raise WorkerError(
            f"target {target!r} has {most:,} classes in {rows:,} rows, more than the limit of"
            f" {MOST_CLASSES:,}: is the target an identifier or a number?",
            status=2,
        )
    return found


def _number_group(target: str, cells: Sequence[str | None], before: Sequence[Group]) -> Group:
    numbers = [float(cell) for cell in cells if cell is not None]
    if len(set(numbers)) <= 1:
        has = "only one value" if numbers else "no value"
        raise WorkerError(f"nothing to learn: target {target!r} has {has} in the training rows")
    scale = scale_of(target, numbers)
    return Group(target, target, (), _next_output(before), NUMBER, scale.mean, scale.scale)


def labels(examples: Sequence[Example], groups: Sequence[Group]) -> tuple[list[list[int]], list[str]]:
    """Return a class number, MISSING or UNSEEN per row and group, and the names of the unseen classes.

    A number that is known is 0. A set has as many columns as the row with the most labels.
    """
    if groups[0].kind == SET:
        return _labels_of_set(examples, groups[0])
    find_number = [_finder(group) for group in groups]
    table = []
    unseen: dict[str, None] = {}
    for example in examples:
        row = [find(answer) for find, answer in zip(find_number, example.answers, strict=True)]
        if UNSEEN in row:
            unseen |= {
                f"{g.name}={a}": None for g, a, n in zip(groups, example.answers, row, strict=True) if n == UNSEEN
            }
        table.append(row)
    return table, list(unseen)


def _finder(group: Group) -> Callable[[str | None], int]:
    numbers = {None: MISSING} | {name: number for number, name in enumerate(group.classes)}
    other = 0 if group.kind == NUMBER else UNSEEN
    return lambda answer: numbers.get(answer, other)


def _labels_of_set(examples: Sequence[Example], group: Group) -> tuple[list[list[int]], list[str]]:
    numbers: dict[str | None, int] = {name: number for number, name in enumerate(group.classes)}
    width = max(1, *(len(example.answers) for example in examples))
    table = []
    for example in examples:
        row = [numbers.get(label, UNSEEN) for label in example.answers]
        table.append(row + [MISSING] * (width - len(row)))
    unseen = {label: None for example in examples for label in example.answers if label not in numbers}
    return table, [f"{group.name}={label}" for label in unseen]


def scaled_numbers(examples: Sequence[Example], groups: Sequence[Group]) -> list[list[float]]:
    """Return the numbers to predict in units of their spread, per row and group; 0 for classes and empty cells."""
    return [
        [_scaled(answer, group) for answer, group in zip(example.answers, groups, strict=True)] for example in examples
    ]


def _scaled(answer: str | None, group: Group) -> float:
    if group.kind != NUMBER or answer is None:
        return 0.0
    return (float(answer) - group.mean) / group.scale


def describe(groups: Sequence[Group]) -> dict[str, list[dict[str, Any]]]:
    """Return the outputs and classes of each target, as JSON; groups_of() parses it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        fields = asdict(group)
        if group.kind != NUMBER:
            del fields["mean"], fields["scale"]
        found.setdefault(group.target, []).append({**fields, "end": group.end})
    return found


def groups_of(described: dict[str, list[dict[str, Any]]]) -> tuple[Group, ...]:
    """Return the groups that describe() was given."""
    return tuple(
        Group(**{**group, "classes": tuple(group["classes"])})
        for groups in described.values()
        for group in ({name: value for name, value in fields.items() if name != "end"} for fields in groups)
    )
