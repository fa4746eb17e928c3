"""The curves of runs: which lines a chart has, and charts as paths in a square with numbers at its sides. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from clusterrun.base.series import Point, round_numbers, thin
from clusterrun.base.units import clause, format_short

MOST, FEW = 400, 12  # points of a line that are drawn, and of which each is marked
SIDE = 1000
#: The charts: title, the curves in it with their names, and whether the values begin at zero.
CHARTS: tuple[tuple[str, Mapping[str, str], bool], ...] = (
    ("Loss", {"loss": "loss", "val_loss": "held-out loss"}, False),
    ("Learning rate", {"lr": "learning rate"}, True),
    ("Tokens/s", {"tokens_per_second": "tokens/s"}, True),
    ("MFU", {"mfu": "MFU"}, True),
    ("Peak memory of rank 0 (GiB)", {"memory_gib": "memory"}, True),
)
RARE = frozenset({"val_loss"})


class Line(NamedTuple):
    """A line of a chart: its name, its points, and the number of its colour. ``is_rare``: each point is marked."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    is_rare: bool = False

    @property
    def known(self) -> list[tuple[float, float]]:
        """Its points that have a value."""
        return [(step, value) for step, value in self.points if value is not None]


class Chart(NamedTuple):
    """A chart: for each line its name, its colour and its paths, the numbers at its sides, and steps that are marked.

    A number or a mark has its place in percent, from the left or from the top. ``summary`` says the chart in words,
    ``data`` and ``domain`` are the values for the page's script, as JSON.
    """

    title: str
    x_label: str
    lines: list[tuple[str, int, str, str]]
    xs: list[tuple[float, str]]
    ys: list[tuple[float, str]]
    marks: list[tuple[float, str]]
    summary: str
    data: str
    domain: str


class Range(NamedTuple):
    """What one side of a chart shows, from the least to the most."""

    least: float
    most: float

    def place(self, value: float) -> float:
        """Return where a value stands, from 0 to 1."""
        return (value - self.least) / (self.most - self.least)

    def numbers(self, about: int) -> list[tuple[float, str]]:
        """Return round numbers with their places in percent from the most."""
        numbers = round_numbers(self.least, self.most, about)
        return [(round(100 - 100 * self.place(number), 2), format_short(number)) for number in numbers]

    def steps(self, about: int) -> list[tuple[float, str]]:
        """Return round whole numbers with their places in percent from the least."""
        numbers = round_numbers(self.least, self.most, about)
        return [(round(100 * self.place(step), 2), format_short(step)) for step in numbers if step.is_integer()]


def lines_of(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Line], bool]]:
    """Return each chart that has lines: its title, its lines, and whether it begins at zero; ``runs`` are from collect.

    Of several runs each has a colour, of a single one each curve.
    """
    charts = [(title, _lines(runs, names), from_zero) for title, names, from_zero in CHARTS]
    return [chart for chart in charts if chart[1]]


def _lines(runs: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[Line]:
    lines = []
    for number, run in enumerate(runs):
        for at, (key, name) in enumerate(names.items()):
            points, is_nan = run["curves"].get(key, ()), key == "loss" and _is_nan(run)
            if points or is_nan:
                is_single = len(runs) == 1
                label = name if is_single else f"{run['handle']} {_title(run, runs)}{clause(at, f' {name}')}"
                label += " (nan)" * is_nan
                lines.append(Line(label, points, at if is_single else number, key in RARE))
    return lines


def _is_nan(run: Mapping[str, Any]) -> bool:
    """Return whether the last loss of a run was NaN: the keys name it even if no value of it can be drawn."""
    metrics = run["metrics"]
    return bool(metrics and metrics["loss"] is None and metrics["nan_losses"])


def _title(run: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """Return what tells a run from the others: its name, or its parameters in a sweep, where all have one name."""
    has_own_name = any(other["name"] != run["name"] for other in runs)
    parameters = " ".join(f"{name}={value}" for name, value in run["parameters"].items())
    return run["name"] if has_own_name or not parameters else parameters


def draw(
    title: str, lines: Sequence[Line], *, x_label: str = "step", marks: Sequence[float] = (), from_zero: bool = False
) -> Chart | None:
    """Return the chart of these lines, None without any value; ``marks`` are steps at which a run restarted."""
    lines = [line._replace(points=thin(line.points, MOST)) for line in lines]
    values = [value for line in lines for _, value in line.known]
    if not values:
        return None
    across, up = _range([step for line in lines for step, _ in line.points]), _range(values, 0.05, from_zero=from_zero)
    return Chart(
        title=title,
        x_label=x_label,
        lines=[(line.name, line.colour, _path(line.points, across, up), _dots(line, across, up)) for line in lines],
        xs=across.steps(6),
        ys=up.numbers(4),
        marks=_marks(marks, across),
        summary=f"{title}. " + "; ".join(_words(line, x_label) for line in lines),
        data=json.dumps([{"name": line.name, "points": line.points} for line in lines]),
        domain=json.dumps(across),
    )


def _marks(steps: Sequence[float], across: Range) -> list[tuple[float, str]]:
    return [
        (round(100 * across.place(step), 2), f"restart before step {format_short(step)}")
        for step in steps
        if across.least < step < across.most
    ]


def _range(values: Sequence[float], margin: float = 0.0, *, from_zero: bool = False) -> Range:
    """Return the range of values with a margin at each end, by its size; a single value stands in the middle."""
    least, most = min(values), max(values)
    if from_zero:
        least = min(0.0, least)
    room = margin * (most - least) if least < most else 0.5 * abs(most) or 1.0
    return Range(least if least == 0 else least - room, most + room)  # zero stays the floor


def _path(points: Sequence[Point], across: Range, up: Range) -> str:
    """Return the path of a line, which breaks where a value is no number."""
    words: list[str] = []
    joins = False
    for step, value in points:
        if value is not None:
            words.append(f"{'L' if joins else 'M'}{_at(step, value, across, up)}")
        joins = value is not None
    return "".join(words)


def _dots(line: Line, across: Range, up: Range) -> str:
    """Return a path of dots, lines without a length, at the values of a line that is rare or has few of them."""
    if len(line.known) > FEW and not line.is_rare:
        return ""
    return "".join(f"M{_at(step, value, across, up)}h0" for step, value in line.known)


def _at(step: float, value: float, across: Range, up: Range) -> str:
    return f"{SIDE * across.place(step):.1f} {SIDE * (1 - up.place(value)):.1f}"


def _words(line: Line, x_label: str) -> str:
    """Return a line in words: where it began and ended, and its least and largest value."""
    if not line.known:
        return f"{line.name}: no number"
    (first, begun), (last, reached) = line.known[0], line.known[-1]
    course = (
        f"{format_short(begun)} at {x_label} {format_short(first)}, {format_short(reached)} at {format_short(last)}"
    )
    values = [value for _, value in line.known]
    return f"{line.name}: {course}, from {format_short(min(values))} to {format_short(max(values))}"
