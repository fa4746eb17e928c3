"""Which ranks are named as slow, and how."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.records.progress import RankProgress
from clusterrun.state.show import find_stragglers, format_stragglers, wait_seconds


def rank(number: int, data: float | None = 0.02, compute: float | None = 0.1, **more: Any) -> RankProgress:
    """The heartbeat of a rank with these seconds per step."""
    values = {"phase": "training", "step_s": 0.4, **more}
    return RankProgress(number, f"gpu{number // 2:02}", 0.0, data_s=data, compute_s=compute, **values)


def test_a_rank_below_seven_tenths_of_the_median_speed_is_named_with_its_node() -> None:
    ranks = [rank(n) for n in range(5)] + [rank(5, compute=0.2)]
    found = find_stragglers(ranks)
    assert [(one.rank, round(speed, 2)) for one, speed in found] == [(5, 0.55)]
    assert format_stragglers(found) == ("rank 5 on gpu02: 0.55x the median speed (data 20 ms, compute 200 ms per step)")


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(n, compute=0.1 + n / 100) for n in range(5)],
        [rank(0), rank(1, compute=0.5)],  # of two, neither is the usual one
        [rank(0), rank(1), rank(2, compute=None)],  # too early to be known
        [rank(n, data=0.0, compute=0.001 * (n + 1)) for n in range(4)],  # a millisecond is noise
        [rank(0), rank(1), rank(2), rank(3, compute=0.5, phase="ending")],
        [],
    ],
)
def test_nobody_is_named_without_need(ranks: list[RankProgress]) -> None:
    assert find_stragglers(ranks) == [] and format_stragglers([]) == ""


def test_a_rank_that_waits_for_its_data_is_slow_too() -> None:
    ranks = [rank(0, data=1.0), rank(1), rank(2), rank(3)]
    assert [one.rank for one, _ in find_stragglers(ranks)] == [0]


def test_the_slowest_come_first_and_the_rest_are_counted() -> None:
    ranks = [rank(n) for n in range(20)] + [rank(n, compute=0.2 + n / 100) for n in range(20, 26)]
    assert [one.rank for one, _ in find_stragglers(ranks)] == [25, 24, 23, 22, 21, 20]
    assert format_stragglers(find_stragglers(ranks)).endswith("; 2 more")


def test_the_rest_of_a_step_is_waiting() -> None:
    assert wait_seconds(rank(0)) == pytest.approx(0.28)
    assert wait_seconds(rank(0, compute=None)) is None
