"""When a measurement counts as slow: well below its peers, and beyond their noise."""

from __future__ import annotations

import random

import pytest

from clusterrun.worker.checks.measured import Tries, find_slow, group_by_value, join_names


def is_slow(one: Tries, others: list[Tries], share: float) -> bool:
    return 0 in find_slow(dict(enumerate([one, *others])), share)


def steady(*bests: float) -> list[Tries]:
    return [Tries(best, 0.97 * best) for best in bests]


@pytest.mark.parametrize(("best", "slow"), [(6.0, True), (39.0, True), (41.0, False), (100.0, False), (300.0, False)])
def test_well_below_the_median_of_steady_peers_is_slow(best: float, slow: bool) -> None:
    assert is_slow(Tries(best, best), steady(90, 100, 110), 0.4) is slow


def test_what_a_typical_peer_has_in_its_worst_try_is_not_slow() -> None:
    noisy = [Tries(100, 10), Tries(110, 12), Tries(90, 9)]
    assert not is_slow(Tries(20, 5), noisy, 0.4)
    assert is_slow(Tries(6, 5), noisy, 0.4)


def test_one_slow_peer_of_two_does_not_make_the_fast_one_slow() -> None:
    assert not is_slow(Tries(100, 90), steady(5), 0.8)
    assert is_slow(Tries(5, 5), steady(100), 0.8)


def test_without_peers_nothing_is_slow() -> None:
    assert not is_slow(Tries(1, 1), [], 0.8)


def test_ten_thousand_noisy_clean_nodes_give_no_alarm() -> None:
    dice = random.Random(7)
    alarms = 0
    for _ in range(2500):
        measured: dict[int, Tries] = {}
        for node in range(4):
            tries = [100 / (1 + dice.expovariate(1.0)) for _ in range(10)]  # other processes take cores now and then
            measured[node] = Tries(max(tries), min(tries))
        alarms += len(find_slow(measured, 0.4))
    assert alarms == 0


def test_values_are_grouped_with_the_most_frequent_first() -> None:
    groups = group_by_value({"n1": "2.5", "n2": "2.6", "n3": "2.6"})
    assert list(groups) == ["2.6", "2.5"]
    assert join_names(list(range(9))) == "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"
