"""`Cluster.map` and `Cluster.sweep` without Slurm: each call and each parameter set is a job on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from clusterrun import Cluster, Outcome
from clusterrun.base.errors import ClusterrunError

LOCAL = {"scheduler": "local", "gpus_per_node": 0, "max_running": 2}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(cwd=tmp_path, environ={**os.environ, "CLUSTERRUN_STATE": str(tmp_path / "state")})


def test_results_come_back_in_order_and_exceptions_in_their_places(cluster: Cluster) -> None:
    def square(number: int) -> int:
        time.sleep(0.5 if number == 1 else 0)
        if number == 3:
            raise ValueError("three", number)
        if number == 4:
            raise SystemExit(7)
        return number * number

    first, second, third, fourth = cluster.map(square, [1, 2, 3, 4], return_exceptions=True, **LOCAL)
    assert (first, second) == (1, 4)
    assert isinstance(third, ValueError) and third.args == ("three", 3) and "in square" in third.__notes__[0]
    assert isinstance(fourth, ClusterrunError) and "left no result (FAILED)" in str(fourth)
    assert fourth.hint.startswith("clusterrun why L")


def test_the_first_exception_is_raised_when_all_calls_have_ended(cluster: Cluster, tmp_path: Path) -> None:
    def note(name: str) -> None:
        (tmp_path / name).touch()
        raise KeyError(name)

    with pytest.raises(KeyError, match="a"):
        cluster.map(note, ["a", "b"], **LOCAL)
    assert (tmp_path / "b").exists()


def test_every_rank_calls_the_function_and_the_result_is_that_of_rank_0(cluster: Cluster) -> None:
    assert cluster.map(lambda number: (os.environ["RANK"], number), [5], tasks_per_node=2, **LOCAL) == [("0", 5)]


def test_the_runs_of_a_sweep_end_and_its_table_has_the_best(cluster: Cluster) -> None:
    body = 'echo "{\\"step\\": 1, \\"loss\\": $CLUSTERRUN_SWEEP_X}" >>$CLUSTERRUN_RUN_DIR/metrics.jsonl'
    sweep = cluster.sweep("sh", "-c", body, grid={"x": [3, 1, 2]}, independent=True, launcher="none", **LOCAL)
    assert {state.status.outcome for state in cluster.wait(sweep.runs)} == {Outcome.DONE}
    assert cluster.table(sweep.runs, "loss").best_line() == f"best loss: 1, job {sweep.runs[1].job_id} (x=1)"
