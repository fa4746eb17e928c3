"""Curves drawn with characters."""

from __future__ import annotations

import re

import pytest

from clusterrun.terminal.plot import plot

DOTS = re.compile(r"[\u2801-\u28ff]")
FALLING = {"train": [(at, 4 + 3 / (1 + at / 30)) for at in range(1, 312)]}


def test_both_axes_hold_all_points_also_beyond_their_last_numbers() -> None:
    lines = plot("loss", FALLING, x_label="step", width=60, height=14)
    drawn = [row for row, line in enumerate(lines) if row and DOTS.search(line)]
    assert min(drawn) < next(row for row, line in enumerate(lines) if line.startswith(("6.5┤", "6┤")))
    ends = max(match.end() for line in lines[1:] for match in DOTS.finditer(line))
    numbers = next(line for line in lines if "300" in line)
    assert ends > numbers.index("300") + 1


@pytest.mark.parametrize("ys", [[2.0, 2.0, 2.0], [1e30, 2.0, -1e30], [0.1, 0.2, 0.3]])
@pytest.mark.parametrize("size", [(60, 12), (200, 40), (12, 4)])
def test_a_plot_has_the_size_that_is_asked_for_and_no_colours(ys: list[float], size: tuple[int, int]) -> None:
    lines = plot("loss", {"a": list(zip([10, 20, 30], ys, strict=True))}, x_label="step", width=size[0], height=size[1])
    assert len(lines) <= size[1] and max(map(len, lines)) <= size[0]
    assert "\x1b" not in "".join(lines)


def test_an_axis_whose_numbers_are_not_known_has_none() -> None:
    lines = plot("loss", FALLING, x_label="", xs=(), width=60, height=14)
    assert not any("100" in line or "step" in line for line in lines)
