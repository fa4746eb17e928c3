"""Reading the files of running ranks: valid records are returned, and no content of a file does harm."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterrun.records.progress import SUMMARY, Gpu, Metrics, RankProgress, last_metrics, ranks, read_ranks
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder.submissions import SubmissionRecord
from tests.support.rank_files import put_bytes, put_progress

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
KEYS = ("rank", "node", "local_rank", "pid", "time", "interval", "phase", "since", "step", "steps", "stepped",
        "first_step", "first_step_at", "step_s", "data_s", "compute_s", "tokens_per_second", "memory_gib",
        "gpu")  # fmt: skip
GPU_KEYS = ("name", "use", "memory_gib", "memory_total_gib", "temperature")


def record(folder: Path, token: str = "tok") -> RunRecord:
    """A run whose folder is this one."""
    return RunRecord(
        run_id="20261121-034501-k3v7qa", run_dir=folder, root=folder, name="lm", what="lm", scheduler="slurm",
        cluster="c", user="me", at=0, nodes=1, workers_per_node=1, shared=False, sources={},
        submissions=(SubmissionRecord(token=token),),
    )  # fmt: skip


def write(folder: Path, rank: int, **values: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    put_progress(folder, rank, {"version": 1, "rank": rank, "time": 5.0, **values})


def test_ranks_come_in_their_order_of_number(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        write(tmp_path, rank, node=f"n{rank}")
    assert [(one.rank, one.node) for one in read_ranks(tmp_path)] == [(0, "n0"), (2, "n2"), (10, "n10")]


def test_the_newest_attempt_counts(tmp_path: Path) -> None:
    write(tmp_path / "attempts" / "tok.0.0", 0, step=90)
    write(tmp_path / "attempts" / "tok.1.0", 0, step=3)
    write(tmp_path / "attempts" / "tok_4.0.0", 0, step=44)
    assert [one.step for one in ranks(record(tmp_path))] == [3]
    assert [one.step for one in ranks(record(tmp_path), 4)] == [44]
    assert ranks(record(tmp_path / "none")) == []


def test_a_torn_record_and_other_files_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, 0)
    whole = (tmp_path / "node-0.ranks").read_bytes()
    for cut in range(len(whole.rstrip())):
        (tmp_path / "node-1.ranks").write_bytes(whole[:cut])
        assert [one.rank for one in read_ranks(tmp_path)] == [0]
    (tmp_path / ".node-1.ranks.tmp").write_bytes(whole)
    (tmp_path / "node-2.ranks").mkdir()
    (tmp_path / "node-3.ranks").symlink_to(tmp_path / "node-0.ranks")
    os.mkfifo(tmp_path / "node-4.ranks")
    assert [one.rank for one in read_ranks(tmp_path)] == [0]


def test_a_folder_that_cannot_be_read_is_no_ranks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert read_ranks(tmp_path / "file") == read_ranks(tmp_path / "none") == []


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.dictionaries(st.sampled_from(KEYS), JSON), gpu=st.dictionaries(st.sampled_from(GPU_KEYS), JSON) | JSON)
def test_whatever_a_record_holds_it_is_read_into_its_types_or_left_out(
    tmp_path: Path, values: dict[str, Any], gpu: object
) -> None:
    put_bytes(tmp_path, 0, json.dumps({"rank": 0, "time": 1.0, "gpu": gpu, **values}).encode())
    for one in read_ranks(tmp_path):
        assert isinstance(one.rank, int) and isinstance(one.time, float) and isinstance(one.node, str)
        assert isinstance(one.phase, str) and isinstance(one.gpu, Gpu | None)
        for figure in (one.since, one.stepped, one.interval, one.tokens_per_second, one.memory_gib):
            assert figure is None or (isinstance(figure, float) and abs(figure) < float("inf"))
        assert isinstance(one.step, int | None) and isinstance(one.steps, int | None)
        one._replace()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_no_bytes_in_place_of_a_record_or_of_metrics_do_harm(tmp_path: Path, data: bytes) -> None:
    put_bytes(tmp_path, 0, data)
    (tmp_path / "metrics.jsonl").write_bytes(data)
    assert all(isinstance(one, RankProgress) for one in read_ranks(tmp_path))
    assert isinstance(last_metrics(record(tmp_path)), Metrics | None)


def metrics(folder: Path, *rows: dict[str, Any], end: str = "\n") -> None:
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + end)


def test_the_newest_of_each_figure_is_told(tmp_path: Path) -> None:
    metrics(
        tmp_path,
        {"step": 10, "loss": 2.0, "val_loss": 2.5, "tokens_per_second": 900.0, "time": 5.0},
        {"step": 20, "loss": 1.5, "tokens_per_second": 1000.0, "mfu": 0.4, "time": 6.0},
    )
    expected = Metrics(step=20, time=6.0, loss=1.5, val_loss=2.5, tokens_per_second=1000.0, mfu=0.4)
    assert last_metrics(record(tmp_path)) == expected


def test_a_tasks_own_scores_are_told_by_name(tmp_path: Path) -> None:
    metrics(tmp_path, {"step": 0, "r2_a": 0.5, "mae_a": 2}, {"step": 9, "r2_a": 0.75, "mae_b": "nan", "lr": 1.0})
    found = last_metrics(record(tmp_path))
    assert found is not None and found.scores == {"r2_a": 0.75, "mae_a": 2}
    metrics(tmp_path, {"step": 9, "scores": [], **{f"f1_{i}": 1.0 for i in range(99)}})
    found = last_metrics(record(tmp_path))
    assert found is not None and found.scores is not None and len(found.scores) == 6


def test_a_half_written_last_row_is_not_told_yet(tmp_path: Path) -> None:
    metrics(tmp_path, {"step": 10, "loss": 2.0}, {"step": 20, "loss": 1.0}, end="")
    found = last_metrics(record(tmp_path))
    assert found is not None and (found.step, found.loss) == (10, 2.0)


def test_a_loss_that_is_not_a_number_is_not_told_as_one(tmp_path: Path) -> None:
    metrics(tmp_path, {"step": 10, "loss": "nan"}, {"step": True}, {"step": 30.5})
    assert last_metrics(record(tmp_path)) == Metrics(step=10, nan_losses=1)


def test_the_number_before_losses_that_were_nan_is_not_the_last_loss(tmp_path: Path) -> None:
    metrics(tmp_path, {"step": 1, "loss": 2.5}, {"step": 2, "loss": "nan"}, {"step": 3, "loss": "nan"})
    found = last_metrics(record(tmp_path))
    assert found is not None and (found.loss, found.nan_losses, found.is_nan) == (None, 2, True)
    metrics(tmp_path, {"step": 3, "loss": "nan"}, {"step": 4, "loss": 2.0})
    found = last_metrics(record(tmp_path))
    assert found is not None and (found.loss, found.is_nan) == (2.0, False)


@pytest.mark.parametrize("before", [0, 100_000])
def test_only_the_end_of_long_metrics_is_read(tmp_path: Path, before: int) -> None:
    metrics(tmp_path, *({"step": step, "loss": 1.0} for step in range(before, before + 5000)))
    found = last_metrics(record(tmp_path))
    assert found is not None and found.step == before + 4999
    os.truncate(tmp_path / "metrics.jsonl", 0)
    assert last_metrics(record(tmp_path)) is None


def test_reading_leaves_the_garbage_collector_as_it_was(tmp_path: Path) -> None:
    put_bytes(tmp_path, 0, b'{"rank": 0, "time": 1.0}')
    states = []
    for switch in (gc.disable, gc.enable):
        switch()
        assert len(read_ranks(tmp_path)) == 1
        states.append(gc.isenabled())
    assert states == [False, True]


def test_the_figures_of_a_gpu_are_read_from_the_record(tmp_path: Path) -> None:
    values = {
        "rank": 0,
        "time": 1,
        "step": 7,
        "memory_gib": 2**70,
        "gpu": {"name": "H100", "use": 97, "temperature": "hot"},
    }
    put_bytes(tmp_path, 0, json.dumps(values).encode())
    (one,) = read_ranks(tmp_path)
    assert (one.time, one.step, one.memory_gib) == (1.0, 7, None)
    assert one.gpu == Gpu("H100", use=97.0) and isinstance(one.gpu.use, float)


def test_a_summary_leaves_out_what_the_lines_of_a_job_do_not_show(tmp_path: Path) -> None:
    values = {"node": "n1", "time": 1.0, "phase": "training", "step": 7, "data_s": 0.5, "pid": 4711, "gpu": {"use": 1}}
    for rank in range(2):
        put_progress(tmp_path, rank, values | {"rank": rank})
    first, second = read_ranks(tmp_path, SUMMARY)
    assert (first, first.pid) == (read_ranks(tmp_path)[0], 4711), "goodput needs the first step of rank 0"
    assert second == RankProgress(1, "n1", 1.0, phase="training", step=7, data_s=0.5)
