"""Training over real ranks: stopped and resumed runs end bitwise equal, also on another number of ranks."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.patience import HUNG

from .conftest import Done, Starter, write_llama

STEPS = 120


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An architecture with dropout, so that the randomness of a step counts too."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 300}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_dropout": 0.1}
    write_llama(tmp_path / "m", **shape, **heads, tie_word_embeddings=True, max_position_embeddings=64)
    return tmp_path / "m"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A little text, quickly tokenized."""
    (tmp_path / "text.txt").write_text("".join(f"line {i} is {i * i} and {i % 7}\n" for i in range(800)))
    return tmp_path / "text.txt"


@pytest.fixture
def lm(step: Starter, model: Path, text: Path) -> Callable[..., Done]:
    """Train the architecture on the text: `lm(ranks, run, key=value …)`."""

    def start(ranks: int, run: str, *, during: Callable[..., None] | None = None, **settings: object) -> Done:
        chosen = {"steps": STEPS, "seq_len": 16, "vocab": 300, "model": model, "data": text, "save_every": 60}
        chosen |= {"keep_last": 9, "eval_every": 0, **settings}
        words = [f"{k}={v}" for k, v in chosen.items()]
        return step(1, ranks, "task", "lm", *words, run=f"runs/{run}", during=during)

    return start


def weights(done: Done, checkpoint: str = f"step-{STEPS:08d}") -> str:
    """The sha256 of a checkpoint's weights, which are its file's bytes."""
    assert done.status == 0, done.err
    return hashlib.sha256((done.run_dir / "checkpoints" / checkpoint / "model.safetensors").read_bytes()).hexdigest()


def branch(done: Done, run: str, checkpoint: str) -> None:
    """Begin another run that has only this checkpoint: what a crash right after it leaves."""
    folder = done.run_dir.parent / run / "checkpoints"
    folder.mkdir(parents=True)
    shutil.copytree(done.run_dir / "checkpoints" / checkpoint, folder / checkpoint)


def wait_for_step(run_dir: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Wait until the run has written the row of a step."""
    deadline = time.monotonic() + 3 * HUNG
    metrics = run_dir / "metrics.jsonl"
    while time.monotonic() < deadline and process.poll() is None:
        if metrics.exists() and any(json.loads(line)["step"] >= step for line in metrics.read_text().splitlines()):
            return
        time.sleep(0.01)
    raise AssertionError(f"step {step} never came")


def test_two_ranks_stopped_by_a_signal_to_one_resume_bitwise_on_two_ranks_and_on_one(
    lm: Callable[..., Done], tmp_path: Path
) -> None:
    sizes = {"global_batch_size": 8, "micro_batch_size": 4}
    whole = lm(2, "whole", **sizes)

    def signal_one_rank(process: subprocess.Popen[str], helper: object) -> None:
        run_dir = tmp_path / "runs" / "cut"
        wait_for_step(run_dir, 10, process)
        pid = json.loads((run_dir / "attempt" / "start.json").read_text())["ranks"][1]["pid"]
        os.kill(pid, signal.SIGUSR2)

    cut = lm(2, "cut", during=signal_one_rank, **sizes)
    assert (cut.status, cut.statuses()) == (0, {0: 0, 1: 0}), cut.err
    stopped = json.loads((cut.run_dir / "attempt" / "stopped").read_text())
    assert stopped["reason"] == "SIGUSR2"
    assert 10 <= stopped["step"] < STEPS
    checkpoint = f"step-{stopped['step']:08d}"
    assert (cut.run_dir / "checkpoints" / "latest").read_text().strip() == checkpoint
    assert not (cut.run_dir / "model").exists()
    branch(cut, "one", checkpoint)

    resumed = lm(2, "cut", **sizes)
    assert f"resumed from {cut.run_dir}/checkpoints/{checkpoint}" in resumed.out
    assert weights(resumed) == weights(whole)
    alone = lm(1, "one", **sizes)
    assert "x 1 rank x 2 accumulation" in alone.out
    assert weights(alone) == weights(whole)


def test_ranks_end_early_together_and_a_resumed_run_ends_where_and_with_the_model_that_the_whole_one_does(
    lm: Callable[..., Done],
) -> None:
    """With this learning rate no weight changes: the second and third evaluation are not better than the first."""
    settings: dict[str, object] = {"global_batch_size": 8, "micro_batch_size": 4, "steps": 40, "eval_samples": 16}
    settings |= {"eval_every": 5, "early_stopping": 2, "lr": 1e-30, "save_every": 10}

    def model_of(done: Done) -> bytes:
        assert done.status == 0 and not (done.run_dir / "attempt" / "stopped").exists(), done.err
        assert "ended early at step 15 of 40: 2 evaluations without a lower held-out loss" in done.out
        assert "the model is that of step 5 of 15, with the lowest held-out loss" in done.out
        return (done.run_dir / "model" / "model.safetensors").read_bytes()

    whole = lm(2, "whole", **settings)
    assert whole.statuses() == {0: 0, 1: 0}
    branch(whole, "cut", "step-00000010")
    assert model_of(lm(1, "cut", **settings)) == model_of(whole)


@pytest.mark.parametrize("ranks", [3, 4])
def test_three_and_four_ranks_resume_bitwise(lm: Callable[..., Done], ranks: int) -> None:
    settings = {"micro_batch_size": 2, "steps": 40, "save_every": 20}
    whole = lm(ranks, "whole", **settings)
    branch(whole, "cut", "step-00000020")
    resumed = lm(ranks, "cut", **settings)
    assert "(step 20)" in resumed.out
    assert weights(resumed, "step-00000040") == weights(whole, "step-00000040")
