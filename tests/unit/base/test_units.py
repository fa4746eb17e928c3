"""Times and amounts: sbatch's formats mean what they mean in sbatch, and a number may have a unit."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import RequestError
from clusterrun.base.units import (
    format_amount,
    format_slurm_time,
    minutes_and_seconds,
    parse_age,
    parse_duration,
    parse_time_limit,
)

SLURM: tuple[tuple[str, Callable[[int, int, int, int], int]], ...] = (
    ("{d}-{h}", lambda d, h, m, s: d * 86_400 + h * 3600),
    ("{d}-{h}:{m}", lambda d, h, m, s: d * 86_400 + h * 3600 + m * 60),
    ("{d}-{h:02}:{m:02}:{s:02}", lambda d, h, m, s: d * 86_400 + h * 3600 + m * 60 + s),
    ("{h}", lambda d, h, m, s: h * 60),
    ("{h}:{s:02}", lambda d, h, m, s: h * 60 + s),
    ("{h}:{m:02}:{s:02}", lambda d, h, m, s: h * 3600 + m * 60 + s),
)
"""Each of sbatch's formats (man sbatch, --time) and its seconds."""
NO_TIMES = ("", " ", "-1", "1-", "-", "1:2:3:4", "1-2:3:4:5", "1.5", "٣", "90\n", "1 2", "9" * 12, "9" * 5000,
            "h", "1h 30m", "30m1h", "1y", "٣h", "1h30", "-1h", "h1", "0h", "0d0s", "1.5h", "1-2h")  # fmt: skip
TOO_LARGE = ("99:99:99", "1:60", "0:60:00", "1-00:61", "1-00:00:75")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:30", 90),
        ("2:00:00", 7200),
        ("100:00:00", 360_000),
        ("1-12", 129_600),
        ("0-36", 129_600),
        ("1-12:30", 131_400),
        ("1-12:30:15", 131_415),
        ("0:30", 30),
        ("90m", 5400),
        ("1h30m", 5400),
        ("2h", 7200),
        ("1d", 86_400),
        ("1w", 604_800),
        ("45s", 45),
        ("1d2h3m4s", 93_784),
        ("UNLIMITED", None),
        ("infinite", None),
        ("0", None),  # no time limit: squeue says UNLIMITED (22.05: seen)
        ("00:00:00", None),
    ],
)
def test_time_limits(text: str, seconds: int | None) -> None:
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", [*NO_TIMES, *TOO_LARGE])
def test_what_is_no_time_is_refused_by_every_option(text: str) -> None:
    with pytest.raises(RequestError, match=r"--time: .* is not a valid time limit"):
        parse_time_limit(text)
    with pytest.raises(RequestError, match=r"--total-time: .* is not a duration"):
        parse_duration(text, "--total-time")


@pytest.mark.parametrize("text", TOO_LARGE)
def test_a_part_of_60_or_more_is_named(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_time_limit(text)
    assert "below 60" in caught.value.hint


@pytest.mark.parametrize("text", ["UNLIMITED", "0", "0:00"])
def test_a_duration_has_an_end(text: str) -> None:
    with pytest.raises(RequestError, match=r"--total-time: '.*' is not a duration \(jobs/x.toml:3\)"):
        parse_duration(text, "--total-time", "jobs/x.toml:3")


@given(st.sampled_from(SLURM), st.integers(0, 999), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_a_time_in_sbatchs_format_means_what_it_means_there(format: Any, d: int, h: int, m: int, s: int) -> None:
    pattern, seconds = format
    text = pattern.format(d=d, h=h, m=m, s=s)
    assert parse_time_limit(text) == (seconds(d, h, m, s) or None)
    assert format_slurm_time(text) == text


@given(st.lists(st.integers(0, 10_000), min_size=5, max_size=5), st.sets(st.integers(0, 4), min_size=1))
def test_a_time_with_units_adds_up_and_reaches_sbatch_as_the_same_time(numbers: list[int], given: set[int]) -> None:
    units = ("w", 604_800), ("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)
    text = "".join(f"{numbers[i]}{units[i][0]}" for i in sorted(given))
    total = sum(numbers[i] * units[i][1] for i in given)
    assert parse_age(text) == total
    if 0 < total:
        assert parse_time_limit(text) == parse_duration(text, "--x") == total
        assert parse_time_limit(format_slurm_time(text)) == total


@given(st.text(alphabet="0123456789:-wdhms ", max_size=20) | st.text())
def test_any_text_is_a_time_or_refused(text: str) -> None:
    try:
        seconds = parse_time_limit(text)
    except RequestError:
        return
    assert seconds is None or seconds > 0
    assert parse_time_limit(format_slurm_time(text)) == seconds


def test_only_minutes_and_seconds_may_be_meant_as_hours_and_minutes() -> None:
    texts = ("1:30", "48:00", "90", "1:30:00", "1-12:30", "1h30m", "UNLIMITED", "x")
    assert [minutes_and_seconds(text) for text in texts] == [(1, 30), (48, 0), *[None] * 6]


def test_an_amount_has_the_digits_that_people_read() -> None:
    amounts = (96, 100 / 3, 1 / 3, 1 / 60, 0.5, 384.0, 1_234_567.8, 0)
    assert [format_amount(one) for one in amounts] == [
        "96", "33.33", "0.33", "0.017", "0.5", "384", "1,234,568", "0",
    ]  # fmt: skip
