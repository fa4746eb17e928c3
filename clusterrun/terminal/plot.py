"""Curves in a terminal, as lines of text without colors, drawn by plotext, which is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import cycle
from typing import Any

from clusterrun.base.series import round_numbers, thin
from clusterrun.base.units import format_short
from clusterrun.terminal.safe_text import safe_line
from clusterrun.terminal.tables import cut

#: How curves are drawn over each other: the first one finely, the others by letters.
MARKERS = ("braille", "x", "+", "o", "*", "#")
INSTALL = "pip install 'plotext>=6.1,<7'"
_DRAWN = {"braille": "⠤"}  # in the line of keys


@cache
def can_plot() -> bool:
    """Return whether a plotext with this API is installed, and load it: it has a part that is compiled."""
    from importlib import metadata

    try:
        if not metadata.version("plotext").startswith("6."):
            return False
        import plotext  # noqa: F401
    except (ImportError, OSError):
        return False
    return True


def plot(
    title: str, curves: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str,
    xs: Sequence[float] | None = None, width: int = 72, height: int = 16, markers: Sequence[str] = MARKERS,
) -> list[str]:  # fmt: skip
    """Return the lines of a plot of the points of each curve, first its title and keys.

    ``xs`` are the numbers below it, round ones by default.
    """
    import plotext

    plotext.terminal.limit(width=False, height=False)  # it may be drawn for another size
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, height - 1)
    keys = []
    for marker, (name, points) in zip(cycle(markers), curves.items(), strict=False):
        drawn = thin(points, 2 * width)  # a letter is two dots wide
        figure.draw(figure.signal([x for x, _ in drawn], [y for _, y in drawn], marker=marker).lines())
        keys.append(f"{_DRAWN.get(marker, marker)} {safe_line(name)}")
    every = [point for points in curves.values() for point in points]
    _mark(figure, "x", [x for x, _ in every], width // 12, xs)
    _mark(figure, "y", [y for _, y in every], height // 3)
    figure.label(x_label, axis="x", side="lower")
    text: str = figure.build().string(colorless=True)
    return [cut("   ".join([title, *keys]), width), *(line.rstrip() for line in text.splitlines())]


def _mark(
    figure: Any, axis: str, values: Sequence[float], about: int, numbers: Sequence[float] | None = None
) -> None:  # fmt: skip
    """Write numbers beside an axis, which holds all values: without limits it would end at its last number."""
    least, most = min(values), max(values)
    if numbers is None:
        numbers = round_numbers(least, most, max(4, about))
    ruler = figure.ruler(axis=axis)
    ruler.ticks(list(numbers), [format_short(number) for number in numbers])
    if least < most:
        ruler.lim(least, most)
