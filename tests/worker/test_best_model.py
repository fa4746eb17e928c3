"""The finished model is that of the best evaluation, and evaluations without a better one may end the training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterrun.base.errors import WorkerError
from clusterrun.worker import tasks
from clusterrun.worker.tasks import lm
from clusterrun.worker.training import best, loop
from clusterrun.worker.training.schedule import in_steps
from clusterrun.worker.training.work import Batch
from tests.worker.small_training import Counting, Net, go, rows, weights

pytestmark = pytest.mark.usefixtures("signals_as_before")
LOSSES = (5.0, 4.0, 2.0, 3.0, 3.0, 2.5, 2.25)  # of the evaluations of a run of twelve steps, the first one before it
BEST = {"model_step": 4, "model_val_loss": 2.0, "model_scores": {"accuracy": 0.04}}
Tensors = list[torch.Tensor]


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> dict[int, Tensors]:
    """Evaluate every second step, with these losses; the weights by the step that was evaluated."""
    seen: dict[int, Tensors] = {}

    def evaluate(model: torch.nn.Module, *given: Any) -> dict[str, float]:
        step = 2 * len(seen) if not seen else max(seen) + 2
        seen[step] = [p.detach().clone() for p in model.parameters()]
        return {"val_loss": LOSSES[step // 2], "accuracy": step / 100}

    monkeypatch.setattr(loop, "evaluate", evaluate)
    return seen


def same(first: Tensors, second: Tensors) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def facts(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "attempt" / "training.json").read_text())
    return {name: value for name, value in document.items() if name.startswith(("model", "ended"))}


def test_the_finished_model_is_that_of_the_lowest_held_out_loss_and_says_so(
    tmp_path: Path, evaluated: dict[int, Tensors], capsys: pytest.CaptureFixture[str]
) -> None:
    done, work = go(tmp_path, eval_every=2)
    assert done and same(weights(work), evaluated[4])
    assert not same(weights(work), evaluated[12])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "the model is that of step 4 of 12, with the lowest held-out loss: 2.000"
    assert work.card == facts(tmp_path) == BEST


def test_keep_last_leaves_the_weights_of_the_last_step(
    tmp_path: Path, evaluated: dict[int, Tensors], capsys: pytest.CaptureFixture[str]
) -> None:
    _, work = go(tmp_path, eval_every=2, keep="last", save_every=4)
    assert same(weights(work), evaluated[12])
    assert capsys.readouterr().out.splitlines()[-1].startswith("validation loss 5.000 -> 2.250 in 12 steps")
    assert work.card == {"model_step": 12}
    assert not list(tmp_path.glob("checkpoints/*/best_weights"))


def test_a_last_step_that_is_the_best_is_said_to_be_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go(tmp_path, steps=4, eval_every=0)
    assert "the model is that of step 4, the last, with the lowest held-out loss: 2." in capsys.readouterr().out


class Dying(Counting):
    """Fails while the batch of a step is put together."""

    def __init__(self, step: int) -> None:
        super().__init__(64)
        self.left = 16 * (step - 1)

    def batch(self, indices: Sequence[int]) -> Batch:
        if len(self.asked) >= self.left:
            raise OSError("the node is gone")
        return super().batch(indices)


@pytest.mark.parametrize("killed_in", [6, 7, 10])  # the best step was the last one saved; was saved; not even saved
def test_a_killed_run_resumes_with_the_best_weights_and_ends_bitwise_the_same(
    tmp_path: Path, evaluated: dict[int, Tensors], killed_in: int
) -> None:
    settings = {"eval_every": 2, "save_every": 4 if killed_in == 6 else 6 if killed_in == 7 else 8}
    with pytest.raises(OSError, match="the node is gone"):
        go(tmp_path, Dying(killed_in), **settings)
    best_weights, saved = evaluated[4], settings["save_every"]
    for step in [step for step in evaluated if step > saved]:
        del evaluated[step]
    done, work = go(tmp_path, Counting(64), **settings)
    assert done and same(weights(work), best_weights)
    assert facts(tmp_path) == BEST


def test_evaluations_without_a_better_one_end_the_training_as_done(
    tmp_path: Path, evaluated: dict[int, Tensors], capsys: pytest.CaptureFixture[str]
) -> None:
    done, work = go(tmp_path, eval_every=2, early_stopping=3)
    assert done and rows(tmp_path)[-1]["step"] == 10 and same(weights(work), evaluated[4])
    why = "3 evaluations without a lower held-out loss (early_stopping=3)"
    assert f"\nended early at step 10 of 12: {why}\n" in capsys.readouterr().out
    assert facts(tmp_path)["ended_early"] == why
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000010\n"
    assert not (tmp_path / "attempt" / "stopped").exists()


@pytest.mark.parametrize(("killed_in", "saved"), [(9, 8), (11, 10)])
def test_the_count_of_evaluations_survives_a_kill(
    tmp_path: Path, evaluated: dict[int, Tensors], killed_in: int, saved: int
) -> None:
    """Also one between the last checkpoint and the export: nothing more is trained."""
    settings = {"eval_every": 2, "save_every": 2, "early_stopping": 3}
    if killed_in > 10:
        go(tmp_path, **settings)
    else:
        with pytest.raises(OSError, match="the node is gone"):
            go(tmp_path, Dying(killed_in), **settings)
    assert max(evaluated) == saved
    done, work = go(tmp_path, **settings)
    assert done and max(evaluated) == 10 and same(weights(work), evaluated[4])
    assert facts(tmp_path)["ended_early"].startswith("3 evaluations")


def test_a_checkpoint_of_a_run_that_kept_the_last_begins_to_look_for_the_best_anew(
    tmp_path: Path, evaluated: dict[int, Tensors]
) -> None:
    with pytest.raises(OSError, match="the node is gone"):
        go(tmp_path, Dying(8), eval_every=2, save_every=6, keep="last")
    _, work = go(tmp_path, eval_every=2)
    assert work.card == {"model_step": 12, "model_val_loss": 2.25, "model_scores": {"accuracy": 0.12}}
    assert same(weights(work), evaluated[12])


def test_a_loss_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    found = best.BestModel(loop_config(), rank=0)
    for step, loss in enumerate((float("nan"), 3.0, float("nan"))):
        found.note(step, {"val_loss": loss}, Net(), is_last=False)
    assert (found.step, found.waited) == (1, 1)


def loop_config(**settings: Any) -> Any:
    return tasks.configure(lm.Config, [f"{key}={value}" for key, value in settings.items()])


def test_tied_weights_are_copied_once_and_frozen_ones_not_at_all() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = torch.nn.Embedding(8, 4), torch.nn.BatchNorm1d(4)
            self.head, self.base = torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(4, 4)
            self.head.weight = self.embed.weight
            self.base.requires_grad_(False)

    model = Tied()
    kept = best.copy_weights(model)
    assert kept.keys() == {"embed.weight", *(f"norm.{name}" for name in model.norm.state_dict())}
    before = kept["embed.weight"].clone()
    with torch.no_grad():
        model.embed.weight += 1
    assert torch.equal(kept["embed.weight"], before)


# -- what is done every so many epochs ---------------------------------------------------------------------------------


def saved(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("checkpoints/step-*"))


def test_checkpoints_and_evaluations_come_every_so_many_epochs(tmp_path: Path) -> None:
    go(tmp_path, save_every="1ep", eval_every="0.5ep", keep_last=9)  # four steps per epoch
    assert saved(tmp_path) == [4, 8, 12]
    assert [row["step"] for row in rows(tmp_path) if "val_loss" in row] == [0, 2, 4, 6, 8, 10, 12]


def test_parts_of_an_epoch_are_exact_and_need_not_be_whole_steps(tmp_path: Path) -> None:
    go(tmp_path, save_every="0.6ep", keep_last=9)  # every 2.4 steps
    assert saved(tmp_path) == [3, 5, 8, 10, 12]
    assert in_steps("0.1ep", 30) == 3 and in_steps(7, 30) == 7 and in_steps("2ep", 5) == 10


def test_numbers_of_epochs_are_read_and_other_units_refused() -> None:
    config = loop_config(save_every="1ep", eval_every="2.5ep")
    assert (config.save_every, config.eval_every) == ("1ep", "2.5ep")
    assert loop_config(save_every="1e2").save_every == 100
    with pytest.raises(
        WorkerError, match=r"save_every must be a whole number, got '1 epoch'; for epochs .* save_every=1ep"
    ):
        loop_config(save_every="1 epoch")
    with pytest.raises(WorkerError, match="early_stopping needs evaluations before the end: set eval_every"):
        tasks.prepare("lm", ["early_stopping=2", "eval_every=0"], world_size=1)
    with pytest.raises(WorkerError, match="steps must be a whole number, got '1ep'"):
        loop_config(steps="1ep")
