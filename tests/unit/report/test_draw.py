"""Charts: paths, round numbers, gaps and spikes. And the phases of ranks."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from clusterrun.base.series import round_numbers, thin
from clusterrun.base.units import format_short
from clusterrun.records.progress import RankProgress
from clusterrun.report.draw import Line, draw, lines_of
from clusterrun.report.timeline import spans
from clusterrun.run_folder.launches import Launch

FINITE = st.floats(-(2.0**63), 2.0**63)


def test_a_line_goes_from_corner_to_corner_and_breaks_where_a_value_is_no_number() -> None:
    chart = draw("Loss", [Line("loss", [(0, 0.0), (1, 5.0), (2, None), (4, 20.0)])])
    assert chart is not None
    ((name, colour, path, dots),) = chart.lines
    assert (name, colour, dots) == ("loss", 0, "M0.0 1000.0h0M250.0 761.9h0M1000.0 47.6h0")
    assert path == "M0.0 1000.0L250.0 761.9M1000.0 47.6"
    assert chart.xs[0] == (0.0, "0") and chart.xs[-1] == (100.0, "4")
    assert chart.summary == "Loss. loss: 0 at step 0, 20 at 4, from 0 to 20"


def test_each_value_of_a_rare_or_short_line_is_marked() -> None:
    many = [(float(step), 1.0) for step in range(20)]
    chart = draw("Loss", [Line("held-out loss", many, is_rare=True), Line("loss", many), Line("short", [(3, 1.5)])])
    assert chart is not None and [dots.count("h0") for _, _, _, dots in chart.lines] == [20, 0, 1]


def test_a_chart_without_a_value_is_none() -> None:
    assert draw("Loss", []) is None and draw("Loss", [Line("loss", [(0, None), (1, None)])]) is None


def test_restarts_outside_of_the_steps_are_not_marked() -> None:
    chart = draw("Loss", [Line("loss", [(10, 1.0), (20, 2.0)])], marks=[5, 15, 20])
    assert chart is not None and chart.marks == [(50.0, "restart before step 15")]


def test_a_spike_of_one_step_survives_thinning_and_so_does_the_first_nan() -> None:
    points = [(float(step), 1.0 if step != 777 else 99.0) for step in range(10_000)]
    points[5000] = (5000.0, None)  # type: ignore[call-overload]
    kept = thin(points, 400)
    assert len(kept) < 450 and (777.0, 99.0) in kept and (5000.0, None) in kept and kept[-1] == points[-1]
    assert kept == sorted(kept, key=lambda point: point[0])


@given(FINITE, FINITE, st.integers(2, 8))
@example(0.0, 5e-324, 2)
@example(-1.7e308, 1.7e308, 4)
def test_round_numbers_are_few_and_lie_between_the_ends(one: float, other: float, about: int) -> None:
    least, most = sorted((one, other))
    numbers = round_numbers(least, most, about)
    room = 1e-6 * max(abs(least), abs(most))
    assert len(numbers) <= about + 1 and all(least - room <= number <= most + room for number in numbers)


def test_round_numbers_are_round() -> None:
    assert round_numbers(0, 150, 6) == [0, 25, 50, 75, 100, 125, 150] and round_numbers(1.93, 2.31, 4) == [
        2,
        2.1,
        2.2,
        2.3,
    ]


@given(st.lists(st.tuples(FINITE, st.none() | FINITE)))
def test_any_points_make_a_chart(points: list[tuple[float, float | None]]) -> None:
    chart = draw("Loss", [Line("loss", sorted(points, key=lambda point: point[0]))], from_zero=True)
    assert chart is None or json.loads(chart.data)
    assert chart is None or not {"nan", "inf"} & {*chart.lines[0][2].lower().split()}


def test_numbers_are_short() -> None:
    values = (0, 2.34567, 11216.4, 3e-4, 1e-5, -2e9, 150)
    assert [*map(format_short, values)] == ["0", "2.346", "11,216", "0.0003", "1e-5", "-2e9", "150"]


def test_the_phases_of_a_rank_fill_its_launch() -> None:
    launch = Launch(Path(), began=100.0)
    rank = RankProgress(0, "n1", 190.0, phase="ending", since=180.0, first_step_at=120.0, step=9, stepped=175.0)
    assert phases(launch, rank, 191.0) == [("starting", 100, 120), ("training", 120, 180), ("ending", 180, 191)]
    after_evaluation = rank._replace(phase="training", since=170.0)
    assert phases(launch, after_evaluation, 191.0) == [("starting", 100, 120), ("training", 120, 191)]
    assert phases(launch, rank._replace(phase="script", since=102.0, first_step_at=None), 191.0) == [
        ("starting", 100, 102), ("running", 102, 191)]  # fmt: skip
    assert phases(launch, rank._replace(script_since=102.0, first_step_at=None), 191.0) == [
        ("starting", 100, 102), ("running", 102, 180), ("ending", 180, 191)]  # fmt: skip


def test_a_rank_that_makes_no_step_any_more_stands_still() -> None:
    launch = Launch(Path(), began=100.0)
    rank = RankProgress(0, "n1", 900.0, phase="training", since=110.0, first_step_at=112.0, stepped=300.0, step_s=2.0)
    assert phases(launch, rank, 905.0)[-1] == ("no step", 300, 905)
    assert phases(launch, rank, 320.0)[-1] == ("training", 110, 320)


def phases(launch: Launch, rank: RankProgress, until: float) -> list[tuple[str, float, float]]:
    return [(span["phase"], span["began"], span["ended"]) for span in spans(launch, rank, until)]


def test_a_run_whose_loss_became_nan_is_named_in_the_keys() -> None:
    good = {"handle": "9_0", "name": "lrs", "parameters": {"lr": "1"}, "curves": {"loss": [(1, 2.0), (2, 1.0)]},
            "metrics": {"loss": 1.0, "nan_losses": None}}  # fmt: skip
    bad = good | {"handle": "9_1", "parameters": {"lr": "30"}, "curves": {}, "metrics": {"loss": None, "nan_losses": 9}}
    ((title, lines, _),) = lines_of([good, bad])
    chart = draw(title, lines)
    assert chart is not None and [name for name, *_ in chart.lines] == ["9_0 lr=1", "9_1 lr=30 (nan)"]
