"""Training over real ranks that goes wrong: one line that says why, no rank left behind, and nothing half-written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.patience import HUNG

from .conftest import Done, Starter, write_llama


@pytest.fixture
def lm(step: Starter, tmp_path: Path) -> Callable[..., Done]:
    """Train a very small model on two ranks: `lm(run, key=value …)`."""
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 300}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    write_llama(tmp_path / "m", **shape, **heads)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {i} is {i * i} and {i % 7}\n" for i in range(200)))

    def start(run: str, *, during: Callable[..., None] | None = None, **settings: object) -> Done:
        chosen = {"vocab": 300, "seq_len": 16, "model": tmp_path / "m", "data": text, "global_batch_size": 8}
        words = [f"{k}={v}" for k, v in ({**chosen, "eval_every": 0, "log_every": 1} | settings).items()]
        return step(1, 2, "task", "lm", *words, run=f"runs/{run}", during=during)

    return start


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with room for two checkpoints and a half."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:  # nothing else is a truly full disk
        reason = f"a small file system to fill needs a user who may mount one: {mounted.stderr.decode().strip()}"
        pytest.skip(reason)  # only root may mount; CI is root, so it never skips there
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def wait_for(ready: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 3 * HUNG
    while not ready():
        assert process.poll() is None and time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def pid_of(run_dir: Path, rank: int) -> int:
    return json.loads((run_dir / "attempt" / "start.json").read_text())["ranks"][rank]["pid"]


def said(done: Done) -> list[str]:
    """What the ranks said on stderr of themselves, without their labels."""
    assert "Traceback" not in done.err, done.err
    return [line[3:] for line in done.err.splitlines() if line[:3] in ("0: ", "1: ")]


def whole(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, each of them proved whole."""
    from clusterrun.worker.training import checkpoint  # imports torch

    found = checkpoint.found(folder)
    for _, path in found:
        checkpoint.verify(path)
    return [step for step, _ in found]


def test_one_rank_that_fails_ends_the_others_and_its_line_stands_alone(lm: Callable[..., Done], tmp_path: Path) -> None:
    done = lm("a", checkpoint_dir=tmp_path / "text.txt")  # rank 0 alone looks: the other one waits in a collective
    assert done.status == 2
    assert said(done) == [f"clusterrun: rank 0: checkpoint_dir={tmp_path}/text.txt: not writable (it is a file)"]
    assert done.json("first_failure.json")["rank"] == 0


def test_what_every_rank_finds_is_said_once(lm: Callable[..., Done]) -> None:
    done = lm("a", drop_last="true", global_batch_size=10_000)
    assert done.status == 1
    assert [line.partition("samples cannot fill")[1] for line in said(done)] == ["samples cannot fill"]


def test_a_killed_rank_ends_the_others_in_seconds_and_the_run_goes_on_from_its_checkpoint(
    lm: Callable[..., Done], tmp_path: Path
) -> None:
    from clusterrun.worker.training import checkpoint  # imports torch

    kept = tmp_path / "kept"

    def cut(rank: int, step: int) -> Done:
        """Kill a rank once a step is saved, in the next save: there is one at every step."""
        moment: list[float] = []

        def kill(process: subprocess.Popen[str], helper: object) -> None:
            wait_for(lambda: any(found >= step for found, _ in checkpoint.found(kept)), process)
            moment.append(time.monotonic())
            os.kill(pid_of(tmp_path / "runs" / f"killed{rank}", rank), signal.SIGKILL)

        done = lm(f"killed{rank}", during=kill, steps=1_000_000, save_every=1, checkpoint_dir=kept)
        assert time.monotonic() - moment[0] < HUNG
        assert done.status != 0 and f"rank {rank} on local0 exited with 137" in done.err
        assert [line for line in said(done) if "lost the connection to another rank" not in line] == []
        (done.run_dir / "attempt" / "end.json").touch()  # as the batch script leaves it: the folder is free again
        return done

    cut(0, 2)
    newest = whole(kept)[0]
    assert f"(step {newest})" in cut(1, newest + 2).out
    assert whole(kept)[0] > newest


def test_a_disk_that_fills_stops_no_rank_and_leaves_the_last_good_checkpoint(
    lm: Callable[..., Done], full_disk: Path
) -> None:
    done = lm("a", steps=30, save_every=5, keep_last=5, checkpoint_dir=full_disk)
    assert done.status == 0 and (done.run_dir / "model" / "model.safetensors").exists(), done.err
    lines = said(done)
    assert lines and all("NOT SAVED: No space left on device" in line for line in lines)
    steps = whole(full_disk)
    assert steps and lines[-1].endswith(f"the last good checkpoint is step {steps[0]}")
    assert [name for name in os.listdir(full_disk) if name.startswith(".")] == []


def test_a_signal_before_the_first_step_stops_the_run_and_no_model_is_left(
    lm: Callable[..., Done], tmp_path: Path
) -> None:
    def tell(process: subprocess.Popen[str], helper: object) -> None:
        wait_for((tmp_path / "runs" / "a" / "attempt" / "start.json").exists, process)
        for _ in range(2):
            os.kill(pid_of(tmp_path / "runs" / "a", 1), signal.SIGUSR2)

    done = lm("a", during=tell, steps=1_000_000)
    assert done.status == 0 and done.json("stopped")["reason"] == "SIGUSR2", done.err
    assert "nothing to save yet" in done.out and not (done.run_dir / "model").exists()


def test_of_two_runs_that_want_one_folder_one_is_refused_and_the_other_saves(
    lm: Callable[..., Done], tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    settings = {"steps": 60, "save_every": 1, "keep_last": 2, "checkpoint_dir": kept}
    others: list[Done] = []
    thread = threading.Thread(target=lambda: others.append(lm("b", **settings)))
    one = lm("a", during=lambda *_: thread.start(), **settings)
    thread.join(HUNG)
    refused, saved = sorted([one, others[0]], key=lambda done: -done.status)
    assert [refused.status, saved.status] == [2, 0], one.err + others[0].err
    assert f"checkpoint_dir={kept} is in use by run " in said(refused)[0]
    assert whole(kept) == [60, 59] and said(saved) == []
