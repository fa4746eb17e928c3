"""The loop on one rank: what it writes, when it stops, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from clusterrun.base.errors import WorkerError
from clusterrun.worker.rank import distenv
from clusterrun.worker.training import ddp
from clusterrun.worker.training.background_writer import BackgroundWriter
from clusterrun.worker.training.checkpoint import Snapshot
from clusterrun.worker.training.consensus import Consensus
from clusterrun.worker.training.ddp import ModelWithLoss
from clusterrun.worker.training.evaluation import evaluate
from clusterrun.worker.training.loop import train
from clusterrun.worker.training.precision import choose
from clusterrun.worker.training.sizes import BatchSizes
from clusterrun.worker.training.work import Batch, Tensors, Work
from tests.worker.small_training import Config, Counting, Net, go, loss, rows, run_env, weights

pytestmark = pytest.mark.usefixtures("signals_as_before")


def test_the_held_out_loss_falls_and_the_rows_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, _ = go(tmp_path, steps=40, lr=0.05)
    assert done
    found = rows(tmp_path)
    assert [r["step"] for r in found if "val_loss" in r] == [0, 6, 12, 18, 24, 30, 36, 40]
    assert found[-1]["val_loss"] < found[0]["val_loss"] - 0.5
    assert {"loss", "lr", "grad_norm", "tokens_per_second", "data_wait_s", "memory_gib", "epoch"} <= found[-1].keys()
    first, last = found[0]["val_loss"], found[-1]["val_loss"]
    assert f"validation loss {first:.3f} -> {last:.3f} in 40 steps" in capsys.readouterr().out


def test_the_steps_printed_are_the_steps_run_and_an_epoch_is_every_sample_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = Counting(50)
    go(tmp_path, samples, steps=0, epochs=2.0, global_batch_size=16, eval_every=0)
    assert "4 steps per epoch; 8 steps = 2.00 epochs" in capsys.readouterr().out
    assert rows(tmp_path)[-1]["step"] == 8
    assert sorted(samples.asked) == sorted([*range(50), *range(50)])


def test_accumulation_changes_nothing_but_rounding(tmp_path: Path) -> None:
    class Plain(Net):
        def __init__(self) -> None:
            super().__init__()
            self.drop = torch.nn.Dropout(0.0)

    found = []
    for name, accum in (("a", 1), ("b", 4)):
        work = Work(Plain(), Counting(64), Counting(10), loss)
        config = Config(global_batch_size=16, grad_accum_steps=accum)
        train(work, config, distenv.resolve({}), run_env(tmp_path / name), torch.device("cpu"))
        found.append(weights(work))
    for one, four in zip(*found, strict=True):
        torch.testing.assert_close(one, four, rtol=1e-5, atol=1e-6)


class Interrupted(Counting):
    """Runs `act` while the fifth batch of sixteen is put together."""

    def __init__(self, count: int, act: Callable[[], None]) -> None:
        super().__init__(count)
        self.act = act

    def batch(self, indices: Sequence[int]) -> Batch:
        if len(self.asked) == 64:
            self.act()
        return super().batch(indices)


def test_the_row_of_a_step_is_on_disk_before_its_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed in between resumes from the checkpoint, and does not write the row again."""
    last_rows: list[tuple[int, int]] = []
    start = BackgroundWriter.save

    def save(writer: BackgroundWriter, snapshot: Snapshot, best: bool = False) -> float:
        last_rows.append((snapshot.step, rows(tmp_path)[-1]["step"]))
        return start(writer, snapshot, best)

    monkeypatch.setattr(BackgroundWriter, "save", save)
    go(tmp_path, steps=6, save_every=2, eval_every=0)
    assert last_rows == [(2, 2), (4, 4), (6, 6)]


def crash() -> None:
    raise OSError("the node is gone")


def test_a_resumed_run_is_bitwise_the_uninterrupted_one_and_its_metrics_have_each_row_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the node is gone"):
        go(tmp_path / "cut", Interrupted(640, crash), steps=20, save_every=3, log_every=1)
    done, resumed = go(tmp_path / "cut", Counting(640), steps=20, log_every=1)
    _, whole = go(tmp_path / "whole", Counting(640), steps=20)
    assert done
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(resumed), strict=True))
    assert [r["step"] for r in rows(tmp_path / "cut")] == list(range(21))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_saves_the_step_and_leaves_as_stopped(tmp_path: Path, signum: signal.Signals) -> None:
    done, _ = go(tmp_path, Interrupted(640, lambda: os.kill(os.getpid(), signum)), steps=20)
    assert not done
    marker = json.loads((tmp_path / "attempt" / "stopped").read_text())
    assert (marker["step"], marker["reason"]) == (4, signum.name)
    assert (tmp_path / "checkpoints" / "latest").read_text().strip() == "step-00000004"
    done, resumed = go(tmp_path, Counting(640), steps=20)
    _, whole = go(tmp_path / "whole", Counting(640), steps=20)
    assert done
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(resumed), strict=True))


def test_sigterm_is_given_back_after_training(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    go(tmp_path)
    assert signal.getsignal(signal.SIGTERM) is before


def test_second_sigterm_does_not_end_a_rank_that_has_saved(tmp_path: Path) -> None:
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append("the rank"))
    go(tmp_path, Interrupted(640, lambda: os.kill(os.getpid(), signal.SIGTERM)), steps=20)
    os.kill(os.getpid(), signal.SIGTERM)
    assert ended == []


def test_a_late_sigterm_does_not_end_a_rank_that_stopped_with_the_others(tmp_path: Path) -> None:
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append("the rank"))
    (tmp_path / "STOP").touch()  # as the flag of another rank, whose SIGTERM came earlier
    go(tmp_path, env=run_env(tmp_path))
    os.kill(os.getpid(), signal.SIGTERM)
    assert ended == []


def test_a_stop_file_stops_the_run_once(tmp_path: Path) -> None:
    env = run_env(tmp_path)
    (tmp_path / "STOP").touch()
    done, _ = go(tmp_path, env=env)
    assert not done
    assert json.loads((tmp_path / "attempt" / "stopped").read_text())["reason"] == "a STOP file"
    assert go(tmp_path)[0]


def test_little_time_left_stops_the_run_and_a_short_limit_does_not_eat_it_up(tmp_path: Path) -> None:
    assert not go(tmp_path / "a", env=run_env(tmp_path / "a", end_time=time.time() + 50), time_margin=60.0)[0]
    assert json.loads((tmp_path / "a" / "attempt" / "stopped").read_text())["reason"] == "the time limit"
    assert go(tmp_path / "b", env=run_env(tmp_path / "b", end_time=time.time() + 30))[0]


def test_nan_stops_at_its_step_and_names_the_samples(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"loss of rank 0 is not finite at step \d+ \(samples of rank 0: .*\b5\b"):
        go(tmp_path, Counting(64, poison=frozenset([5])), steps=4, save_every=1)


def test_a_step_with_nan_is_skipped_where_that_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, work = go(tmp_path, Counting(64, poison=frozenset([5])), steps=8, on_nan="skip")
    assert done
    assert capsys.readouterr().out.count("skipping this step") == 2  # two epochs of four steps
    assert all(p.isfinite().all() for p in weights(work))


def test_skipping_ends_when_no_step_is_finite(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="not finite"):
        go(tmp_path, Counting(16, poison=frozenset(range(16))), steps=40, on_nan="skip")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_each_precision_trains_on_this_device(tmp_path: Path, precision: str) -> None:
    go(tmp_path, steps=40, lr=0.05, precision=precision)
    found = rows(tmp_path)
    assert found[-1]["val_loss"] < found[0]["val_loss"] - 0.3


def test_fp16_keeps_its_loss_scale_over_a_restart(tmp_path: Path) -> None:
    go(tmp_path, steps=6, precision="fp16")
    trainer = torch.load(tmp_path / "checkpoints" / "step-00000006" / "trainer.pt", weights_only=True)
    assert trainer["scaler"]["scale"] > 0
    _, resumed = go(tmp_path, steps=12, precision="fp16", schedule="constant")
    _, whole = go(tmp_path / "whole", steps=12, precision="fp16", schedule="constant")
    assert all(p.isfinite().all() for p in weights(resumed))
    assert len(weights(whole)) == len(weights(resumed))


def test_another_order_of_samples_is_not_resumed(tmp_path: Path) -> None:
    go(tmp_path, steps=4)
    with pytest.raises(WorkerError, match="seed=1"):
        go(tmp_path, steps=8, seed=2)


def test_resume_no_starts_afresh_but_a_requeued_run_goes_on_from_its_own(tmp_path: Path) -> None:
    env = run_env(tmp_path / "a")
    with pytest.raises(OSError, match="the node is gone"):
        go(tmp_path / "a", Interrupted(640, crash), env, steps=20, save_every=3, resume="no")
    go(tmp_path / "a", Counting(640), env, steps=20, resume="no", log_every=1)
    assert rows(tmp_path / "a")[-17]["step"] == 4
    kept = str(tmp_path / "a" / "checkpoints")
    with pytest.raises(WorkerError, match="has checkpoints of run r1"):
        go(
            tmp_path / "b",
            env=dataclasses.replace(run_env(tmp_path / "b"), run_id="r2"),
            resume="no",
            checkpoint_dir=kept,
        )


def test_a_model_with_batch_norm_is_warned_of_on_several_ranks_only() -> None:
    class Normed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList([torch.nn.BatchNorm1d(4), torch.nn.BatchNorm2d(4)])

    two, one = BatchSizes(16, 8, 1, 2), BatchSizes(16, 16, 1, 1)
    assert ddp.warn_of_batch_norm(Normed(), two).startswith(
        "warning: the model has 2 BatchNorm layers, normalizing over one rank's micro batch (8 samples), so results"
    )
    synced = torch.nn.SyncBatchNorm.convert_sync_batchnorm(Normed())
    for model, sizes in ((Normed(), one), (Net(), two), (synced, two)):
        assert ddp.warn_of_batch_norm(model, sizes) == ""


def test_the_best_checkpoint_outlives_the_last_ones(tmp_path: Path) -> None:
    go(tmp_path, steps=30, lr=0.05, schedule="constant", save_every=3, eval_every=3, keep_last=1)
    kept = {int(p.name[5:]) for p in (tmp_path / "checkpoints").glob("step-*")}
    losses = {r["step"]: r["val_loss"] for r in rows(tmp_path) if "val_loss" in r and r["step"]}
    assert kept == {30, min(losses, key=lambda step: losses[step])}


def test_a_rank_without_held_out_samples_measures_in_evaluation_mode(tmp_path: Path) -> None:
    modes = []

    def measure(model: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
        modes.append(model.training)
        return torch.ones(1, dtype=torch.float64)

    work = Work(Net(), Counting(2), Counting(1), loss, measure, summarize=lambda sums: {"count": sums.item()})
    sizes, cpu = BatchSizes(2, 1, 1, 2), torch.device("cpu")
    consensus = Consensus(distenv.resolve({}), run_env(tmp_path))
    measures = evaluate(ModelWithLoss(work), work, sizes, Config(), choose("fp32", cpu), cpu, consensus, rank=1)
    assert (modes, measures["count"]) == ([False], 0.0)
    assert work.model.training
