"""A check of real ranks on a store: what hangs or does not come is named, and what only differs ends no training."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore

from clusterrun.base.errors import WorkerError
from clusterrun.run_folder.check_findings import BROKEN, DIFFERS, Finding
from clusterrun.worker import checks
from clusterrun.worker.rank.distenv import DistEnv, RunEnv

Check = Callable[..., dict[str, Any]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """Run the check of rank 0 and return its report; it raises WorkerError with the verdict."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))
    run_dir = tmp_path / "base" / ".clusterrun" / "runs" / "r"
    run_dir.mkdir(parents=True)

    def run(world: int = 1, gpus: int = 0, *, before_training: bool = True) -> dict[str, Any]:
        dist = DistEnv(0, 0, world, 1, 0, "n0", "h", 0, "slurm", ("127.0.0.1", server.port))
        (tmp_path / "nodes").write_text("\n".join(f"n{number}" for number in range(world)))
        env = RunEnv(run_dir=run_dir, attempt_dir=tmp_path, secret="s", join_timeout=2.0, check_gpus=gpus)
        checks.check(dist, env, before_training=before_training)
        report: dict[str, Any] = json.loads((tmp_path / "check.json").read_text())
        return report

    yield run


def test_node_in_order_ends_nothing(check: Check, capfd: pytest.CaptureFixture[str]) -> None:
    report = check()
    assert report["ranks"] == 1 and report["nodes"][0]["tflops"] > 0
    assert "no broken node or link found (" in capfd.readouterr().err


def test_measurement_that_hangs_is_named_with_its_node(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "STAGE_S", 2.0)
    monkeypatch.setattr(checks, "GRACE_S", 0.5)
    monkeypatch.setattr(checks.node, "gemm", lambda device, duration: time.sleep(60))
    with pytest.raises(WorkerError, match="the gemm check failed on n0: the measurement did not finish in time"):
        check()
    assert not json.loads((tmp_path / "check.json").read_text())["ok"]


def test_rank_that_does_not_come_is_named_with_its_node(check: Check) -> None:
    with pytest.raises(WorkerError, match="no result from rank 1 on n1"):
        check(world=2)


def test_missing_gpu_is_broken(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)  # this process may have counted the GPUs already
    with pytest.raises(WorkerError, match="n0 has 0 of 2 GPUs"):
        check(gpus=2)


def test_what_differs_ends_a_check_but_no_training(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.node, "_available_memory", lambda: 0.5)
    assert [one["check"] for one in check()["findings"] if one["status"] == "differs"] == ["memory"]
    with pytest.raises(WorkerError, match=r"n0 has 0\.5 GiB of free memory"):
        check(before_training=False)


def test_gpu_memory_of_others_ends_a_training_and_less_is_a_line(
    check: Check, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = [Finding(DIFFERS, "left behind", "n0: no process uses 2 segments", "remove them", ("n0",))]
    monkeypatch.setattr(checks.node, "Search", lambda node, ports: SimpleNamespace(found=lambda: found))
    differs = [one["text"] for one in check()["findings"] if one["status"] == DIFFERS]
    assert differs == ["n0: no process uses 2 segments"]
    assert "clusterrun: check: differs: n0: no process uses 2 segments; remove them\n" in capfd.readouterr().err
    found.append(Finding(BROKEN, "left behind", "n0: process 31 (python3) of alice holds 40.0 GiB", "kill 31", ("n0",)))
    with pytest.raises(WorkerError, match=r"the check found a problem: n0: process 31 \(python3\) of alice"):
        check()
