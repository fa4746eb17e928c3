"""The efficiency card: its lines, and what to ask for next time."""

from __future__ import annotations

import json

import pytest

from clusterrun.report.card import Efficiency, Request, Usage, learn

HOUR = 3600
RUN = Usage(
    gpu_hours=25.333, gpu_busy=0.71, gpu_memory_gib=61.2, memory_gib=12.0, asked_memory_gib=80.0,
    seconds=3 * HOUR + 600, asked_s=12 * HOUR, is_whole=True,
)  # fmt: skip


def lines(usage: Usage) -> list[str]:
    return Efficiency(usage, learn(usage)).lines()


def test_the_card_says_what_was_used_what_was_asked_for_and_what_to_ask_for() -> None:
    assert lines(RUN) == [
        "25.33 GPU-hours, GPUs 71 % busy, peak memory 12 GB, 61 GB on a GPU",
        "you asked for 80 GB and 12:00:00 and used 12 GB and 3:10:00",
        "next time ask for --time 4:00:00 --mem 15G",
    ]


def test_what_is_not_known_is_not_said() -> None:
    assert lines(Usage(is_whole=True)) == []
    only_time = Usage(seconds=60, asked_s=HOUR, asked_memory_gib=4, is_whole=True)
    assert lines(only_time) == [
        "you asked for 1:00:00 and used 1:00", "next time ask for --time 0:10:00",
    ]  # fmt: skip
    assert lines(Usage(memory_gib=0.35)) == ["peak memory 0.3 GB"]


@pytest.mark.parametrize(("used", "asked", "wanted"), [
    (3 * HOUR, 12 * HOUR, 4 * HOUR),
    (8 * HOUR, 12 * HOUR, None),  # it fits
    (30 * HOUR, 72 * HOUR, 38 * HOUR),
    (5, 3600, 600),
    (5, 600, None),
    (13 * HOUR, 12 * HOUR, None),
])  # fmt: skip
def test_a_time_limit_is_to_be_a_quarter_longer_than_was_needed(used: int, asked: int, wanted: int | None) -> None:
    assert learn(Usage(seconds=used, asked_s=asked, is_whole=True)).seconds == wanted


@pytest.mark.parametrize(("used", "asked", "wanted"), [(0.2, 64, 2), (12, 80, 15), (40, 400, 52), (70, 1000, 96),
                                                       (60, 80, None), (12, None, None)])  # fmt: skip
def test_memory_is_to_be_a_quarter_more_than_was_needed(used: float, asked: float | None, wanted: int | None) -> None:
    assert learn(Usage(memory_gib=used, asked_memory_gib=asked, is_whole=True)).memory_gib == wanted


def test_the_most_that_a_run_of_the_job_needed_counts() -> None:
    earlier = [RUN._replace(seconds=5 * HOUR, memory_gib=2.0), RUN._replace(seconds=1 * HOUR, memory_gib=30.0)]
    assert learn(RUN, earlier) == (6.5 * HOUR, 40)


def test_a_run_that_did_not_complete_teaches_nothing() -> None:
    cut = RUN._replace(is_whole=False, seconds=12 * HOUR)
    assert learn(cut, [RUN]) == Request()
    assert learn(RUN, [cut]) == learn(RUN)


def test_json_has_the_values() -> None:
    data = Efficiency(RUN, learn(RUN)).json()
    assert data["gpu_busy"] == 0.71 and data["next"] == {"time_s": 4 * HOUR, "memory_gib": 15}
    assert json.dumps(data)


def test_memory_is_to_be_more_than_what_a_run_of_the_job_had_that_was_killed_for_memory() -> None:
    killed = RUN._replace(is_whole=False, was_too_little=True, asked_memory_gib=32.0, memory_gib=31.0)
    assert learn(RUN).memory_gib == 15 and learn(RUN, [killed]).memory_gib == 40
    assert learn(RUN, [killed._replace(asked_memory_gib=None)]).memory_gib == 40, "its peak, where it asked for none"
    assert learn(RUN, [killed._replace(asked_memory_gib=64.0)]).memory_gib is None, "the request fits"
