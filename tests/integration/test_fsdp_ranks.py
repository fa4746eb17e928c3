"""FSDP over real ranks: it trains as DDP does, and continues bitwise; on fewer ranks with the same losses."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.installed_command import until
from tests.support.patience import HUNG

from .conftest import Done
from .test_training_ranks import branch, lm, model, text, wait_for_step  # noqa: F401  (fixtures)

SIZES = {"steps": 50, "global_batch_size": 8, "micro_batch_size": 1, "log_every": 1, "save_every": 20}
SAMPLES = {"eval_every": 25, "eval_samples": 8, "sample_prompts": '["line 1"]', "sample_tokens": 3}  # by rank 0 alone


def losses(done: Done) -> list[float]:
    """The loss of each step, the first one first."""
    assert done.status == 0, done.err
    rows = [json.loads(line) for line in (done.run_dir / "metrics.jsonl").read_text().splitlines()]
    by_step = {row["step"]: row["loss"] for row in rows if row["step"] > 0}
    return [by_step[step] for step in sorted(by_step)]


def shards(done: Done, step: int = 50) -> dict[str, str]:
    """The sha256 of each rank's shard."""
    folder = done.run_dir / "checkpoints" / f"step-{step:08d}"
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("shard-*"))}


def test_four_ranks_train_as_under_ddp_and_after_a_kill_continue_bitwise_and_on_two_ranks_equally(
    lm: Callable[..., Done],  # noqa: F811
    tmp_path: Path,
) -> None:
    ddp = losses(lm(4, "ddp", **SIZES, **SAMPLES))
    whole = lm(4, "whole", parallel="fsdp", **SIZES, **SAMPLES)
    assert losses(whole) == pytest.approx(ddp, abs=1e-5)
    assert len(shards(whole)) == 4
    exported = load_file(whole.run_dir / "model" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "runs" / "ddp" / "model" / "model.safetensors").items():
        assert exported[name].sub(tensor).abs().max() < 1e-4, name

    run_dir = tmp_path / "runs" / "cut"

    def kill_a_rank(process: subprocess.Popen[str], helper: object) -> None:
        wait_for_step(run_dir, 30, process)
        until((run_dir / "checkpoints" / "step-00000020").exists, HUNG)  # a thread writes it
        os.kill(json.loads((run_dir / "attempt" / "start.json").read_text())["ranks"][2]["pid"], signal.SIGKILL)

    cut = lm(4, "cut", parallel="fsdp", during=kill_a_rank, **SIZES, **SAMPLES)
    assert cut.status != 0
    newest = max((run_dir / "checkpoints").glob("step-*")).name  # of step 20, if the rank was not killed late
    step = int(newest.removeprefix("step-"))
    branch(cut, "two", newest)
    resumed = lm(4, "cut", parallel="fsdp", **SIZES, **SAMPLES)
    assert f"resumed from {cut.run_dir}/checkpoints/{newest} (step {step})" in resumed.out
    assert shards(resumed) == shards(whole)

    two = lm(2, "two", parallel="fsdp", **SIZES, **SAMPLES)
    assert f"(step {step})" in two.out
    assert losses(two) == pytest.approx(ddp[step:], abs=1e-5)


def test_ranks_that_generate_samples_train_on(lm: Callable[..., Done]) -> None:  # noqa: F811
    done = lm(2, "sampled", parallel="fsdp", steps=2, eval_every=1, sample_prompts="The", sample_tokens=2)
    assert len(losses(done)) == 2
    assert len((done.run_dir / "samples.jsonl").read_text().splitlines()) == 3
