"""The launches of a run: what each of them lost, and how much of the allocated time was training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterrun.records.launches import failed_launches, goodput, load_launches, lost_seconds, until_now
from clusterrun.records.progress import Metrics, RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import training_progress
from clusterrun.run_folder.launches import BY_SIGTERM, Launch, load
from clusterrun.run_folder.training_progress import TrainingProgress
from tests.support.rank_files import put_progress
from tests.support.run_records import attempt, submitted

#: One of 1,000 s: 50 s to its first step, then a step each 10 s; it fails 5 s after its 90th.
FIRST = Launch(Path("tok.0.0"), 137, "killed", 0.0, 955.0, 1, 60.0, 90, 950.0, 10.0)
#: It resumes from step 80, and its first step is done after 45 s.
SECOND = Launch(Path("tok.0.1"), 0, "", 955.0, 2000.0, 81, 1000.0, 180, 1990.0, 10.0)


def test_a_restart_costs_the_time_between_two_steps_and_the_steps_that_it_repeats() -> None:
    assert lost_seconds([FIRST, SECOND]) == [5.0, 45.0 + 10 * 10.0]


def test_steps_of_a_launch_too_short_to_know_its_pace_cost_what_they_cost_the_next_one() -> None:
    assert lost_seconds([FIRST._replace(step_s=None), SECOND]) == [5.0, 45.0 + 10 * 10.0]
    assert lost_seconds([FIRST._replace(step_s=None), SECOND._replace(step_s=None)]) == [5.0, None]


def test_a_single_launch_loses_nothing() -> None:
    assert lost_seconds([FIRST]) == [0.0]
    assert lost_seconds([FIRST._replace(first_step_at=None)]) == [0.0]


def test_a_launch_without_a_step_is_lost_as_a_whole() -> None:
    none = FIRST._replace(first_step=None, first_step_at=None, step=None, stepped=None)
    assert lost_seconds([none, SECOND]) == [955.0, 0.0]
    again = SECOND._replace(folder=Path("tok.0.2"), began=2000.0, ended=3000.0, first_step_at=2050.0, stepped=2990.0)
    middle = none._replace(folder=Path("tok.0.1"), began=955.0, ended=2000.0)
    assert lost_seconds([FIRST, middle, again]) == [5.0, 1045.0, 50.0 + 100.0]


def test_nothing_is_known_of_launches_whose_steps_nothing_says() -> None:
    none = FIRST._replace(first_step=None, first_step_at=None, step=None, stepped=None)
    assert lost_seconds([none, none._replace(folder=Path("tok.0.1"))]) == [None, None]


def test_a_script_has_the_steps_that_it_printed(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_text(json.dumps({"began": 10.0, "ended": 400.0, "status": 1}))
    training_progress.write(tmp_path, TrainingProgress(90, 390.0, 300, 0.5, 1, 30.0, 10, 70.0))
    launch = load(tmp_path)
    assert (launch.first_step, launch.first_step_at, launch.step, launch.stepped) == (1, 30.0, 90, 390.0)
    assert launch.step_s == 4.0


@pytest.mark.parametrize("missing", ["began", "first_step"])
def test_what_is_not_known_is_not_guessed(missing: str) -> None:
    assert lost_seconds([FIRST, SECOND._replace(**{missing: None})]) == [5.0, None]


def test_goodput_is_the_time_of_steps_that_count_by_the_allocated_time() -> None:
    found = goodput([FIRST, SECOND], Metrics(180, trained_s=1800.0))
    assert found is not None
    assert (found.useful_s, found.allocated_s, found.restarts, found.lost_s) == (1800.0, 2000.0, 1, 150.0)
    assert found.share == pytest.approx(0.9)


def test_time_in_the_queue_is_not_allocated() -> None:
    requeued = SECOND._replace(folder=Path("tok.1.0"), began=10_955.0, ended=12_000.0, first_step_at=11_000.0)
    found = goodput([FIRST, requeued], Metrics(180, trained_s=1800.0))
    assert found is not None and (found.allocated_s, found.lost_s) == (2000.0, 150.0)


def test_steps_since_the_newest_row_of_metrics_count_too() -> None:
    found = goodput([FIRST], Metrics(85, trained_s=850.0))
    assert found is not None and found.useful_s == 900.0


@pytest.mark.parametrize(
    ("launches", "metrics"),
    [
        ([], Metrics(1, trained_s=1.0)),
        ([FIRST], None),
        ([FIRST], Metrics(90)),  # a script, or an older worker
        ([FIRST._replace(began=None), SECOND], Metrics(90, trained_s=9.0)),
        ([FIRST._replace(began=955.0)], Metrics(90, trained_s=9.0)),
    ],
)
def test_there_is_no_goodput_without_its_parts(launches: list[Launch], metrics: Metrics | None) -> None:
    assert goodput(launches, metrics) is None


def record(run: RunRecord, restart: int, launch: int, **values: Any) -> Path:
    folder = attempt(run, restart, launch)
    (folder / "launch.json").write_text(json.dumps({"version": 1, **values}))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    found = submitted(Store(tmp_path, tmp_path / "state"))
    (found.run_dir / "attempts").mkdir(exist_ok=True)
    return found


def test_launches_are_read_in_their_order_with_cause_and_nodes(run: RunRecord) -> None:
    record(run, 1, 0, began=30.0)
    record(run, 0, 1, began=20.0, ended=29.0, status=85)
    folder = record(run, 0, 0, began=10.0, ended=20.0, status=137, cause="killed", step=7)
    (folder / "nodes").write_text("n1\nn2")
    attempt(run, 0, 1, requeue={"why": "the time limit"})
    found = load_launches(run)
    assert [(one.attempt, one.cause, one.step) for one in found] == [
        ("0.0", "killed", 7), ("0.1", "the time limit", None), ("1.0", "", None),
    ]  # fmt: skip
    assert found[0].nodes() == ["n1", "n2"] and found[1].nodes() == []
    assert failed_launches(found) == ["killed"]  # the second is followed by another start of the job


def test_a_launch_that_sigterm_ended_has_the_reason_for_which_it_came(run: RunRecord) -> None:
    record(run, 0, 0, began=10.0, ended=20.0, status=143, cause=BY_SIGTERM)
    assert [one.cause for one in load_launches(run)] == [BY_SIGTERM]
    timed_out = replace(run, submissions=(replace(run.submission, final={"state": "TIMEOUT"}),))
    assert [one.cause for one in load_launches(timed_out)] == ["the time limit"]
    attempt(run, 0, 0, requeue={"why": "preempted"})
    assert [one.cause for one in load_launches(run)] == ["preempted"]


def test_a_record_of_an_older_worker_still_names_the_cause(run: RunRecord) -> None:
    record(run, 0, 0, status=137, cause="killed", time=20.0)
    attempt(run, 0, 1)
    assert failed_launches(load_launches(run)) == ["killed"]


def test_a_running_launch_has_the_steps_of_its_heartbeat_and_lasts_until_now(run: RunRecord) -> None:
    record(run, 0, 0, began=10.0)
    rank = RankProgress(0, "n1", 90.0, step=5, stepped=80.0, first_step=1, first_step_at=20.0, step_s=10.0)
    (found,) = until_now(load_launches(run), [rank], 100.0)
    assert (found.ended, found.step, found.first_step_at, found.step_s) == (100.0, 5, 20.0, 10.0)


def test_a_launch_whose_supervisor_was_killed_ends_with_its_last_heartbeat(run: RunRecord) -> None:
    folder = record(run, 0, 0, began=10.0)
    put_progress(folder, 0, {"rank": 0, "time": 90.0, "step": 5})
    record(run, 1, 0, began=200.0)
    first, second = until_now(load_launches(run), [], None)
    assert (first.ended, first.step, second.ended) == (90.0, 5, 200.0)


@pytest.mark.parametrize("content", ["", "[]", '{"began": "x", "ended": [], "cause": 7, "step": 1e99}', "{" * 9999])
def test_a_damaged_record_is_left_out(run: RunRecord, content: str) -> None:
    (attempt(run) / "launch.json").write_text(content)
    (found,) = load_launches(run)
    assert found[1:] == Launch(found.folder)[1:]
