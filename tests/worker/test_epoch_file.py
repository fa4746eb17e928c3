"""The .pt files of PyTorch's scripts: written after each epoch, and continued with their epoch and optimizer."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterrun.base.errors import WorkerError
from clusterrun.worker import tasks
from clusterrun.worker.tasks import lm
from clusterrun.worker.training import epoch_file
from clusterrun.worker.training.ddp import make_optimizer
from tests.worker.small_training import Config, Counting, Net, go, rows, run_env, weights

pytestmark = pytest.mark.usefixtures("signals_as_before")
PER_EPOCH = 4  # steps, of go()


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content


def trained(steps: int, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randint(0, 16, (4, 8))).logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def moments(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[torch.Tensor]:
    return [optimizer.state[parameter]["exp_avg"] for parameter in model.parameters()]


def test_a_file_after_each_epoch_loads_in_a_script_as_its_own(tmp_path: Path) -> None:
    go(tmp_path, export=str(tmp_path / "out" / "checkpoint_epoch_N.pt"), keep="last")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"checkpoint_epoch_{n}.pt" for n in (1, 2, 3)]
    content = load(tmp_path / "out" / "checkpoint_epoch_3.pt")
    assert (content["epoch"], content["step"]) == (3, 12)
    model = Net()
    model.load_state_dict(content["model_state_dict"])
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(content["optimizer_state_dict"])
    assert [state["step"].item() for state in optimizer.state.values()] == [12, 12, 12]
    trained(1, optimizer, model)


def test_a_run_that_continues_its_file_ends_bitwise_as_an_uninterrupted_one(tmp_path: Path) -> None:
    _, whole = go(tmp_path / "whole", export=str(tmp_path / "e_N.pt"))
    _, resumed = go(tmp_path / "resumed", resume=str(tmp_path / "e_2.pt"), log_every=1)
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(resumed), strict=True))
    assert [row["step"] for row in rows(tmp_path / "resumed")] == [9, 10, 11, 12]
    with pytest.raises(WorkerError, match="seed=1"):
        go(tmp_path / "other", resume=str(tmp_path / "e_2.pt"), seed=2)


@pytest.mark.parametrize(("name", "epoch"), [("checkpoint_epoch_2.pt", 2), ("checkpoint_epoch_2.pt", 1), ("x.pth", 2)])
def test_a_scripts_file_continues_after_its_epoch_with_its_optimizer(
    tmp_path: Path, name: str, epoch: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one of epoch 1 that its name counts as the second."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    trained(5, optimizer, model)
    state = torch.nn.DataParallel(model).state_dict()
    content = {"epoch": epoch, "model_state_dict": state, "optimizer_state_dict": optimizer.state_dict(), "loss": 2.5}
    torch.save(content, tmp_path / name)
    go(tmp_path / "run", resume=str(tmp_path / name), steps=9, log_every=1, lr=1e-12, keep="last")
    out = capsys.readouterr().out
    assert f"resumed from {tmp_path / name} (step 8)" in out and "optimizer_state_dict" not in out
    assert "nan" not in out
    saved = torch.load(tmp_path / "run" / "checkpoints" / "step-00000009" / "trainer.pt", weights_only=True)
    assert {state["step"].item() for state in saved["optimizer"]["state"].values()} == {6}


def test_the_order_of_the_parameters_is_found() -> None:
    """The model's, as AdamW(model.parameters()) has it; or matrices first, as transformers and we group them."""
    source = Net()
    single = torch.optim.AdamW(source.parameters())
    grouped = make_optimizer(source, Config())
    for optimizer in (single, grouped):
        trained(3, optimizer, source)
        model = Net()
        ours = make_optimizer(model, Config())
        assert epoch_file.continue_adam(ours, model, optimizer.state_dict())
        assert all(map(torch.equal, moments(ours, model), moments(optimizer, source)))
        assert [group["weight_decay"] for group in ours.param_groups] == [0.1, 0.0]


@pytest.mark.parametrize(
    "stored",
    [
        None, [], {}, {"state": {}, "param_groups": 5}, {"state": 5, "param_groups": [{"params": [0, 1, 2]}]},
        {"state": {}, "param_groups": [{}]}, {"state": {}, "param_groups": [{"params": [0, 1]}]},
        {"state": {0: {"exp_avg": 1, "exp_avg_sq": 1, "step": 1}}, "param_groups": [{"params": [0, 1, 2]}]},
        {"state": {0: {"exp_avg": torch.ones(1), "exp_avg_sq": torch.ones(1), "step": 1}},
         "param_groups": [{"params": [0, 1, 2]}]},
        {"state": {0: {"exp_avg": torch.ones(16, 8), "exp_avg_sq": torch.ones(16, 8), "step": "x"}},
         "param_groups": [{"params": [0, 1, 2]}]},
    ],
    ids=range(10),
)  # fmt: skip
def test_a_state_that_does_not_fit_changes_nothing(stored: Any) -> None:
    model = Net()
    optimizer = make_optimizer(model, Config())
    trained(1, optimizer, model)
    before = [state.clone() for state in moments(optimizer, model)]
    assert not epoch_file.continue_adam(optimizer, model, stored)
    assert all(map(torch.equal, moments(optimizer, model), before))


def test_another_optimizers_state_is_left_out_and_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    trained(2, optimizer, model)
    content = {"epoch": 1, "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    torch.save(content, tmp_path / "x.pt")
    go(tmp_path / "run", resume=str(tmp_path / "x.pt"), steps=5)
    assert "x.pt: its optimizer_state_dict is not AdamW's for this model, and is left out\n" in capsys.readouterr().out


def test_a_file_past_the_runs_end_is_refused_with_what_to_set(tmp_path: Path) -> None:
    go(tmp_path / "a", export=str(tmp_path / "e_N.pt"))
    with pytest.raises(
        WorkerError, match=r"finished 3 epochs, which is step 12, but this run ends at step 8: set"
    ) as no:
        go(tmp_path / "b", resume=str(tmp_path / "e_3.pt"), steps=8)
    assert no.value.status == 2


def test_a_name_without_an_n_is_written_once_at_the_end(tmp_path: Path) -> None:
    go(tmp_path, export=str(tmp_path / "NET.pt"), steps=6)
    assert load(tmp_path / "NET.pt")["epoch"] == 1 and load(tmp_path / "NET.pt")["step"] == 6
    with pytest.raises(WorkerError, match="after each epoch of 4 steps, but the run has 3: set steps=0 epochs=1"):
        go(tmp_path / "b", export=str(tmp_path / "e_N.pt"), steps=3)


def test_files_of_another_run_are_kept_and_its_own_are_written_again(tmp_path: Path) -> None:
    export = str(tmp_path / "e_N.pt")
    go(tmp_path / "a", export=export)
    go(tmp_path / "a", Counting(64), export=export, resume="no", steps=16)  # the same run, started again
    assert (tmp_path / "e_4.pt").exists()
    other = dataclasses.replace(run_env(tmp_path / "b"), run_id="r2")
    with pytest.raises(WorkerError, match=r"e_1\.pt exists and does not belong to this run: give a new name"):
        go(tmp_path / "b", env=other, export=export)
    (tmp_path / "e_best.pt").write_bytes(b"another's, and no epoch")
    go(tmp_path / "a", export=export, resume="no", steps=16)
    (tmp_path / "e_1.pt").write_bytes(b"no PyTorch file")
    with pytest.raises(WorkerError, match=r"e_1\.pt exists and does not belong"):
        go(tmp_path / "a", export=export, resume="no", steps=20)
    assert load(tmp_path / "e_4.pt")["epoch"] == 4


def test_a_disk_that_takes_no_file_does_not_end_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Blocking(Counting):
        def batch(self, indices: Any) -> Any:
            (tmp_path / "e_1.pt").mkdir(exist_ok=True)  # a folder in the file's place
            return super().batch(indices)

    done, _ = go(tmp_path / "a", Blocking(64), export=str(tmp_path / "e_N.pt"))
    assert done and load(tmp_path / "e_3.pt")["epoch"] == 3
    assert f"cannot write {tmp_path / 'e_1.pt'}: " in capsys.readouterr().err
    assert not list(tmp_path.glob(".tmp*"))


def test_tied_weights_have_both_names_and_are_saved_once(tmp_path: Path) -> None:
    class Tied(Net):
        def __init__(self) -> None:
            super().__init__()
            self.head.weight = self.embed.weight

    model = Tied()
    kept = epoch_file._on_cpu(model.state_dict())
    assert kept.keys() == model.state_dict().keys()
    assert kept["head.weight"] is kept["embed.weight"]


def test_other_names_and_parallel_fsdp_are_refused_at_submission() -> None:
    for words, said in (
        (["export=model.safetensors"], "export=model.safetensors must name a .pt file, such as checkpoint_epoch_N.pt"),
        (["export=x.pt", "parallel=fsdp"], "export needs parallel=ddp"),
    ):
        with pytest.raises(WorkerError, match=said):
            tasks.prepare("lm", words, world_size=1)
    assert lm.Config().export == ""
