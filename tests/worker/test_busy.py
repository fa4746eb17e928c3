"""The times of a rank's own work, and the training time that restarts keep."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as torch_dist
from torch.nn.parallel import DistributedDataParallel

from clusterrun.worker.rank.progress import here
from clusterrun.worker.training.throughput import FEWEST, BusyTimes
from tests.worker.small_training import go, rows, run_env

pytestmark = pytest.mark.usefixtures("signals_as_before")
CPU = torch.device("cpu")
FORWARD_S, BACKWARD_S = 0.004, 0.006


class Slow(torch.autograd.Function):
    """Work of a known time: in the forward pass and in the backward pass."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD_S)
        return x * 1

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(BACKWARD_S)
        return gradient


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(Slow.apply(self.first(x)))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process."""
    store = torch_dist.FileStore(str(tmp_path / "store"), 1)
    torch_dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch_dist.destroy_process_group()


def step(busy: BusyTimes, model: torch.nn.Module) -> None:
    with busy.forward():
        loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    busy.add_step(1.0, 0.25)


def test_computing_is_the_forward_and_backward_time_of_all_micro_batches(alone: None) -> None:
    model = DistributedDataParallel(Net())
    busy = BusyTimes(model, CPU, 3)
    took = []
    for _ in range(FEWEST):
        began = time.perf_counter()
        step(busy, model)
        took.append(time.perf_counter() - began)
    found = busy.medians()
    assert (found["step_s"], found["data_s"]) == (1.0, 0.25)
    assert 3 * (FORWARD_S + BACKWARD_S) <= found["compute_s"] <= 3 * max(took)


def test_a_rank_is_compared_only_after_some_steps(alone: None) -> None:
    model = DistributedDataParallel(Net())
    busy = BusyTimes(model, CPU, 1)
    assert busy.medians() == {}
    for _ in range(FEWEST - 1):
        step(busy, model)
    assert busy.medians().keys() == {"step_s"}


def test_one_rank_alone_has_only_step_times() -> None:
    model = Net()
    busy = BusyTimes(model, CPU, 1)
    for _ in range(FEWEST):
        step(busy, model)
    assert busy.medians().keys() == {"step_s"}


def test_a_training_publishes_its_first_step_and_its_step_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("step", "first_step", "first_step_at"):
        monkeypatch.setattr(here, name, None)  # another test of this process may have trained
    began = time.time()
    go(tmp_path, steps=4)
    assert here.first_step == 1 and here.first_step_at is not None and began <= here.first_step_at <= time.time()
    assert here.times()["step_s"] > 0


def test_training_time_goes_into_rows_and_checkpoints_and_a_repeated_step_counts_once(tmp_path: Path) -> None:
    go(tmp_path, steps=12, save_every=6, log_every=3)
    first = rows(tmp_path)
    times = [row["trained_s"] for row in first if "trained_s" in row]
    assert times == sorted(times) and times[0] > 0
    state = json.loads((tmp_path / "checkpoints" / "step-00000006" / "state.json").read_text())
    assert state["trained_s"] == next(row["trained_s"] for row in first if row["step"] == 6)

    for path in (tmp_path / "checkpoints" / "step-00000012").iterdir():  # a launch that was killed before step 12
        path.unlink()
    (tmp_path / "checkpoints" / "step-00000012").rmdir()
    go(tmp_path, steps=12, save_every=6, log_every=3)
    again = rows(tmp_path)
    assert [row["step"] for row in again] == sorted({row["step"] for row in again})
    assert again[-1]["trained_s"] >= state["trained_s"]
    before, after = (row["trained_s"] for row in again if row["step"] in (6, 7))
    assert before == state["trained_s"] < after


def test_another_runs_checkpoint_brings_no_training_time(tmp_path: Path) -> None:
    go(tmp_path / "one", steps=6)
    other = dataclasses.replace(run_env(tmp_path / "two"), run_id="r2")
    go(tmp_path / "two", env=other, steps=12, resume=str(tmp_path / "one" / "checkpoints" / "step-00000006"))
    first = rows(tmp_path / "two")[0]
    assert first["step"] == 7 and first["trained_s"] == first["step_s"]
