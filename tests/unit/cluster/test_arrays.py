"""The arrays of the Python API: the files of a call, and what a sweep submits."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from clusterrun import Cluster, RequestError
from clusterrun.base.errors import ClusterrunError
from clusterrun.scheduler.slurm.executor import load_result, save_call
from clusterrun.testing import FakeScheduler
from clusterrun.worker.rank import callable as worker_callable
from tests.support.command_desk import Desk


class TwoWordsError(Exception):
    """Its pickle cannot be loaded."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def invert(number: int) -> float:
    if number < 0:
        raise TwoWordsError("below", "zero")
    return 1 / number


def called(folder: Path, value: Any, rank: int = 0) -> None:
    save_call(folder, invert, value)
    worker_callable.call(folder / "submitit", rank)


def test_the_result_of_rank_0_comes_back(tmp_path: Path) -> None:
    called(tmp_path, 4)
    assert load_result(tmp_path, "job 1_0", done=True) == (0.25, None)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "submitit").iterdir()} == {0o600}
    (other := tmp_path / "other").mkdir()
    called(other, 4, rank=1)
    with pytest.raises(FileNotFoundError):
        load_result(other, "job 1_0", done=True)


def test_an_exception_of_any_rank_comes_back_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        called(tmp_path, 0, rank=1)
    _, error = load_result(tmp_path, "job 1_0", done=False)
    assert isinstance(error, ZeroDivisionError)
    assert "in job 1_0:" in error.__notes__[0] and "return 1 / number" in error.__notes__[0]


def test_an_exception_that_cannot_be_pickled_comes_back_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(TwoWordsError):
        called(tmp_path, -1)
    _, error = load_result(tmp_path, "job 1_0", done=False)
    assert isinstance(error, ClusterrunError) and str(error).endswith("TwoWordsError: below zero")


def test_a_value_that_cannot_be_pickled_leaves_nothing(desk: Desk) -> None:
    fake = FakeScheduler()
    with pytest.raises(RequestError, match="cannot pickle the call"):
        Cluster(scheduler=fake).map(invert, [1, (n for n in ())], gpus_per_node=0)
    assert not fake.submissions and not list(desk.project.rglob("runs/*"))
    assert Cluster(scheduler=fake).map(invert, []) == []


def test_a_sweep_submits_one_array_with_a_run_for_each_set(desk: Desk) -> None:
    fake, lines = FakeScheduler(), list[str]()
    cluster = Cluster(scheduler=fake, notify=lines.append)
    words = ("train.py", "--lr", "{lr}", "--seed", "{seed}")
    sweep = cluster.sweep(*words, grid={"lr": [1e-4, 3e-4]}, rows=[{"seed": 0}, {"seed": 1}], gpus_per_node=0)
    assert (sweep.name, len(fake.submissions)) == ("train", 1)
    assert [str(run.job_id) for run in sweep.runs] == ["100_0", "100_1", "100_2", "100_3"]
    assert cluster.table(sweep.runs).parameters == [
        {"seed": "0", "lr": "0.0001"}, {"seed": "0", "lr": "0.0003"},
        {"seed": "1", "lr": "0.0001"}, {"seed": "1", "lr": "0.0003"},
    ]  # fmt: skip
    assert "0.0003" in cluster.table(sweep.runs)._repr_html_()


def test_a_sweep_of_a_job_file_uses_its_table(desk: Desk) -> None:
    desk.write("jobs/a.toml", 'script = "train.py"\nargs = ["{x}"]\ngpus-per-node = 0\n[sweep]\ngrid.x = [1, 2, 3]\n')
    assert len(Cluster(scheduler=FakeScheduler()).sweep(job="a").runs) == 3
    assert len(Cluster(scheduler=FakeScheduler()).sweep(job="a", grid={"x": range(2)}).runs) == 2
    with pytest.raises(RequestError, match="no parameters were given"):
        Cluster(scheduler=FakeScheduler()).sweep("train.py")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grid": {"x": []}}, "grid: x has no values"),
        ({"grid": {"x": 0.1}}, "grid: x has no values"),
        ({"rows": []}, "rows: expected parameter sets"),
        ({"rows": "abc"}, "rows: expected parameter sets"),
        ({"rows": [{"x": 1}, {"x": 2, "z": 2}]}, "different parameter names"),
        ({"grid": {"x": [1, 2]}, "max_running": 0}, "max_running: expected a whole number"),
        ({"grid": {"x": [1, 2]}, "max_running": "3"}, "max_running: expected a whole number"),
    ],
)
def test_a_sweep_of_wrong_values_is_refused(desk: Desk, arguments: dict[str, Any], message: str) -> None:
    fake = FakeScheduler()
    with pytest.raises(RequestError, match=message):
        Cluster(scheduler=fake).sweep("train.py", "{x}", gpus_per_node=0, **arguments)
    assert not fake.submissions


def test_a_grid_takes_the_job_files_spelling_and_rows_any_order(desk: Desk) -> None:
    cluster = Cluster(scheduler=FakeScheduler())
    rows = [{"x": 1, "y": 2}, {"y": 1, "x": 2}]
    sweep = cluster.sweep("train.py", "{x}", "{y}", "{seed}", grid={"seed": "0..2"}, rows=rows, gpus_per_node=0)
    found = cluster.table(sweep.runs).parameters
    assert found[0] == {"x": "1", "y": "2", "seed": "0"} and found[-1] == {"x": "2", "y": "1", "seed": "2"}


class LoadsAsText:
    def __reduce__(self) -> tuple[Any, ...]:
        return (str, ("no exception",))


def test_an_error_that_loads_as_something_else_is_named_by_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "submitit").mkdir()
    trace = "Traceback (most recent call last):\n  here\nTwoWordsError: below\n\n"
    worker_callable.dump((pickle.dumps(LoadsAsText()), trace), tmp_path / "submitit" / "error.pkl")
    _, error = load_result(tmp_path, "job 1_0", done=False)
    assert isinstance(error, ClusterrunError) and str(error) == "job 1_0: TwoWordsError: below"


def test_too_many_calls_are_refused() -> None:
    with pytest.raises(RequestError, match="10001 calls"):
        Cluster(scheduler=FakeScheduler()).map(invert, range(10_001))
