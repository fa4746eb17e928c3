"""A series that is kept as a few of its values, and its line of bars."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.series import Thinned, sparkline

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(st.integers(0, 5000))
def test_a_long_series_keeps_a_few_values_spread_evenly_over_it(length: int) -> None:
    series = Thinned(16)
    for number in range(length):
        series.add(number)
    gaps = {after - before for before, after in zip(series.values, series.values[1:], strict=False)}
    assert len(series.values) <= 17 and len(gaps) <= 1
    assert length < 32 or series.values[-1] > 0.8 * length


@pytest.mark.parametrize(("values", "width", "line"), [
    ([], 10, ""), ([1.0], 10, ""), ([2.0, 2.0], 10, "▁▁"), ([0, 1, 2, 3, 4, 5, 6, 7], 10, "▁▂▃▄▅▆▇█"),
    ([9.0, 5.0, 1.0], 10, "█▅▁"), ([*range(100)], 4, "▁▃▅█"),
])  # fmt: skip
def test_values_are_drawn_as_bars(values: list[float], width: int, line: str) -> None:
    assert sparkline(values, width) == line


@given(st.lists(NUMBERS), st.integers(2, 50))
def test_a_line_of_bars_is_never_wider_than_asked(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) <= width
