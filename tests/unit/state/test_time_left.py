"""How far a training is, and when it ends."""

from __future__ import annotations

import pytest

from clusterrun.base.job import JobId, JobStatus, Outcome
from clusterrun.base.units import format_left
from clusterrun.records.progress import Metrics
from clusterrun.state import time_left

NOW = 10_000.0
HALF = Metrics(step=450, time=NOW, steps=1000, steps_per_second=0.1)


@pytest.mark.parametrize(("figures", "now", "shown"), [
    (HALF, NOW, "45 %, 1h 32m left"),
    (HALF, NOW + 5, "45 %, 1h 32m left"),
    (HALF, NOW + 90, "45 %, 1h 32m left"),
    (HALF._replace(steps_per_second=10.0, steps=750), NOW + 4, "60 %, 26s left"),  # read at the supervisor's pace
    (HALF, NOW + 5000, "45 %"),  # a step that hangs
    (HALF._replace(steps_per_second=None), NOW, "45 %"),  # the first steps
    (HALF._replace(steps=None), NOW, ""),
    (HALF._replace(steps=450), NOW, "100 %"),
    (HALF._replace(steps=400), NOW, ""),
    (HALF._replace(steps=0), NOW, ""),
    (HALF._replace(time=None), NOW, "45 %, 1h 32m left"),
])  # fmt: skip
def test_the_part_that_is_done_and_the_time_left_are_shown_as_far_as_known(
    figures: Metrics, now: float, shown: str
) -> None:
    assert time_left.describe(figures, now) == shown


@pytest.mark.parametrize(("elapsed", "limit", "missed"), [
    (4500, 11_000, None),
    (4500, 9400, 600.0),
    (4500, 9990, None),  # ten seconds
    (4500, None, None),
    (200, 5000, None),  # too early
    (78, 300, 5278.0),  # much longer than the limit
    (50, 300, None),  # the first minute
])  # fmt: skip
def test_a_training_that_will_miss_its_time_limit_is_known_early(
    elapsed: int, limit: int | None, missed: float | None
) -> None:
    job = JobStatus(id=JobId("5"), state="RUNNING", outcome=Outcome.RUNNING, elapsed=elapsed, time_limit=limit)
    assert time_left.missed_by(HALF, job, NOW) == missed


@pytest.mark.parametrize(("seconds", "shown"), [
    (0, "0s"), (-5, "0s"), (40, "40s"), (89, "89s"), (90, "2m"), (700, "12m"), (3570, "1h 00m"), (8100, "2h 15m"),
    (100_000, "1d 3h"),
])  # fmt: skip
def test_a_time_left_has_two_units(seconds: float, shown: str) -> None:
    assert format_left(seconds) == shown


@pytest.mark.parametrize(("pace", "seconds"), [(2.0, 450.0), (0.0, None), (1e-320, None), (None, None)])
def test_the_time_of_all_steps_at_the_mean_speed(pace: float | None, seconds: float | None) -> None:
    assert time_left.seconds_in_all(Metrics(9, steps=900, steps_per_second=pace)) == seconds
