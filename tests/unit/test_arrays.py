"""The arrays of the Python API: the files of a call, and what a sweep submits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterrun import Cluster, RequestError
from clusterrun.errors import ClusterrunError
from clusterrun.scheduler.slurm.executor import load_result, save_call
from clusterrun.testing import FakeScheduler
from clusterrun.worker import callable as worker_callable
from tests.command_desk import Desk


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
    assert [dict(row.parameters) for row in cluster.table(sweep.runs).rows] == [
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
