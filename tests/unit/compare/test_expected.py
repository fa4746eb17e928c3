"""A run is compared with what was requested; one wrong thing gives one finding that differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.compare.expected import check_run
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder.check_findings import DIFFERS, OK, UNKNOWN
from tests.support.rank_files import put_end, put_progress
from tests.support.run_records import attempt, submitted

TRAINING = {
    "version": 1, "precision": "bf16", "precision_requested": "auto", "samples": 29_500, "micro_batch_size": 4,
    "grad_accum_steps": 1, "drop_last": False, "steps": 3688, "steps_per_epoch": 3688, "shared_steps": 2000,
    "shared_samples": 16_000, "seen_samples": 16_000, "each_once": True,
}  # fmt: skip


def rank(number: int, **changes: Any) -> dict[str, Any]:
    return {"rank": number, "task": number, "node": f"n{number}", "device": "cuda:0", "python": "3.12.1",
            "torch": "2.9.0", "nccl": "2.27.5", "driver": "560.1"} | changes  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    """Two nodes with one GPU each; all is as requested."""
    run = submitted(Store(tmp_path, tmp_path / "state"), nodes=2, workers_per_node=1)
    (run.run_dir / "spec.json").write_text('{"gpus_per_node": 1}')
    attempt(run, start={"backend": "nccl", "ranks": [rank(0), rank(1)]}, training=TRAINING)
    put_end(attempt(run), 0, {"rank": 0, "any_joined_group": True})
    return run


def write(run: RunRecord, name: str, data: dict[str, Any]) -> None:
    (attempt(run) / name).write_text(json.dumps(data))


def statuses(run: RunRecord, status: str) -> list[str]:
    return [one.check for one in check_run(run) if one.status == status]


def test_run_as_requested_is_ok_in_all(run: RunRecord) -> None:
    assert statuses(run, OK) == ["processes", "process group", "nodes", "devices", "backend", "precision", "samples",
                                 "steps per epoch", "versions"]  # fmt: skip
    texts = {one.check: one.text for one in check_run(run)}
    formula = "expected = 29500 samples / (micro batch 4 x 2 ranks x 1 accumulation step)"
    assert texts["steps per epoch"] == f"3688 expected, 3688 counted; {formula}"
    assert texts["samples"] == "16000 in the first 2000 steps, each on exactly one rank"


@pytest.mark.parametrize(
    ("start", "wrong"),
    [
        ({"backend": "nccl", "ranks": [rank(0)]}, ["processes", "nodes", "devices"]),
        ({"backend": "nccl", "ranks": [rank(0), rank(1, node="n0")]}, ["nodes", "devices"]),
        ({"backend": "gloo", "ranks": [rank(0, device="cpu"), rank(1, device="cpu")]}, ["devices", "backend"]),
        ({"backend": "nccl", "ranks": [rank(0), rank(1, torch="2.8.0")]}, ["torch version"]),
        ({"backend": "nccl", "ranks": [rank(0, driver="550.1"), rank(1, nccl="")]}, ["nccl version", "driver version"]),
    ],
)
def test_wrong_start_is_named(run: RunRecord, start: dict[str, Any], wrong: list[str]) -> None:
    write(run, "start.json", start)
    assert statuses(run, DIFFERS) == wrong


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"precision_requested": "fp16"}, ["precision"]),
        ({"seen_samples": 32_000, "each_once": False}, ["samples"]),
        ({"each_once": False}, ["samples"]),
        ({"steps_per_epoch": 7375, "shared_steps": 2000}, ["steps per epoch"]),
        ({"drop_last": True}, ["steps per epoch"]),
    ],
)
def test_wrong_training_is_named(run: RunRecord, changes: dict[str, Any], wrong: list[str]) -> None:
    write(run, "training.json", TRAINING | changes)
    assert statuses(run, DIFFERS) == wrong


def test_metrics_count_the_steps_per_epoch(run: RunRecord) -> None:
    metrics = run.run_dir / "metrics.jsonl"
    metrics.write_text('{"step": 0, "val_loss": 7}\n{"step": 50, "epoch": 0.013557483731019523}\n')
    assert statuses(run, DIFFERS) == []
    metrics.write_text('{"step": 50, "epoch": 0.006779661016949152}\n')
    assert statuses(run, DIFFERS) == ["steps per epoch"]


def test_separate_programs_differ(run: RunRecord) -> None:
    put_end(attempt(run), 0, {"rank": 0, "any_joined_group": False})
    assert statuses(run, DIFFERS) == ["process group"]


def test_own_script_has_unknown_lines_and_no_alarm(run: RunRecord) -> None:
    (attempt(run) / "training.json").unlink()
    (attempt(run) / "node-0.ranks").unlink()
    assert statuses(run, UNKNOWN) == ["process group", "precision", "samples", "steps per epoch"]
    assert statuses(run, DIFFERS) == []


def test_older_worker_without_versions_is_unknown(run: RunRecord) -> None:
    bare = [{"rank": i, "task": i, "node": f"n{i}", "device": "cuda:0"} for i in range(2)]
    write(run, "start.json", {"backend": "nccl", "ranks": bare})
    assert statuses(run, UNKNOWN) == ["versions"]


def test_rank_that_never_came_is_named(run: RunRecord) -> None:
    (attempt(run) / "start.json").unlink()
    put_progress(attempt(run), 0, {"rank": 0, "time": 1.0, "node": "n0"})
    (first,) = [one for one in check_run(run) if one.check == "processes"]
    assert first.text == "2 expected, 0 joined; no record of rank 1"


def test_run_that_has_not_started_is_refused_in_one_line(run: RunRecord) -> None:
    for path in attempt(run).iterdir():
        path.unlink()
    with pytest.raises(RequestError, match="no rank has started yet") as error:
        check_run(run)
    assert error.value.hint == "clusterrun why 101"


def test_records_of_wrong_types_do_no_harm(run: RunRecord) -> None:
    write(run, "training.json", {"samples": "x", "steps_per_epoch": 2.5, "each_once": 1, "precision": ["bf16"]})
    write(run, "start.json", {"backend": 5, "ranks": [rank(0, torch=5, device=7), rank(1, driver=None)]})
    (run.run_dir / "spec.json").write_text("[]")
    (run.run_dir / "metrics.jsonl").write_text('{"step": true, "epoch": "x"}\n')
    assert "backend" in statuses(run, DIFFERS) and "precision" in statuses(run, UNKNOWN)


WRONG: list[Any] = [
    None, True, 0, -1, 1.5, 5e-324, 1e308, 2**62, 10**30, "", "x" * 500, [], ["cuda:0"], {}, {"rank": 0},
]  # fmt: skip


@pytest.mark.parametrize("value", WRONG, ids=str)
def test_any_value_in_any_place_is_survived(run: RunRecord, value: Any) -> None:
    for key in TRAINING:
        write(run, "training.json", TRAINING | {key: value})
        (run.run_dir / "metrics.jsonl").write_text(json.dumps({"step": value, "epoch": value}) + "\n")
        assert check_run(run)
    for key in rank(0):
        write(run, "start.json", {"backend": value, "ranks": [rank(0), rank(1, **{key: value}), value]})
        assert check_run(run)
    for name in ("spec.json", "metrics.jsonl"):
        (run.run_dir / name).write_text(json.dumps(value) + "\n")
        assert check_run(run)


def test_run_of_no_rank_is_survived(tmp_path: Path) -> None:
    run = submitted(Store(tmp_path, tmp_path / "state"), nodes=0, workers_per_node=0)
    attempt(run, start={"backend": "gloo", "ranks": [rank(0)]}, training=TRAINING)
    assert "steps per epoch" in statuses(run, UNKNOWN)


def test_huge_numbers_of_a_foreign_record_take_no_time(tmp_path: Path) -> None:
    run = submitted(Store(tmp_path, tmp_path / "state"), nodes=200_000_000_000, workers_per_node=200_000_000_000)
    attempt(run, start={"backend": "gloo", "ranks": [rank(0)]})
    assert "processes" in statuses(run, DIFFERS)
