"""Which files of trainers are a launch's, and what they say."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.printed_progress import Reading
from clusterrun.run_folder import training_progress
from clusterrun.worker.job import trainer_files
from clusterrun.worker.job.progress_follower import ProgressFollower
from clusterrun.worker.job.trainer_files import find, read
from tests.support.patience import until

STATE = {"epoch": 0.5, "global_step": 500, "max_steps": 900,
         "log_history": [{"loss": 0.5, "step": 250}, {"loss": 0.25, "step": 500}, {"eval_loss": 0.3}]}  # fmt: skip
ROWS = '{"step": 10, "loss": 2.5}\n{"step": 20, "loss": 2.25}\n{"step": 3'
TABLE = "epoch,step,train_loss\n0,49,2.5\n0,99,2.25\n0,1"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: str, text: str) -> Path:
    file = Path.cwd() / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def found(*arguments: str, began: float = 0.0) -> Path | None:
    return find(arguments, began, None, Path("attempt"))


@pytest.mark.parametrize(("name", "text", "reading"), [
    ("trainer_state.json", json.dumps(STATE), Reading("file", 500, 900, loss=0.25)),
    ("metrics.jsonl", ROWS, Reading("counter", 20, loss=2.25)),
    ("metrics.csv", TABLE, Reading("file", 99, loss=2.25)),
    ("metrics.csv", "epoch,loss,step\r\n0,,49\r\n", Reading("file", 49)),
    ("metrics.csv", "epoch,step\n0,a\n", Reading()),
    ("metrics.csv", "epoch,loss\n0,1\n", Reading()),
    ("metrics.csv", "", Reading()),
    ("trainer_state.json", "[" * 100_000, Reading()),
    ("trainer_state.json", '{"global_step": "x", "log_history": [3, {"loss": {}}]}', Reading("file")),
])  # fmt: skip
def test_a_file_says_where_the_training_is(name: str, text: str, reading: Reading) -> None:
    assert read(write(name, text)) == reading


def test_the_newest_checkpoint_below_a_folder_of_the_arguments_counts() -> None:
    write("out/checkpoint-500/trainer_state.json", "{}")
    newest = write("out/checkpoint-1000/trainer_state.json", "{}")
    os.utime(newest.parents[1] / "checkpoint-500" / newest.name, (1, 1))
    for arguments in (["--output_dir", "out"], ["--output_dir=out"], ["dir=out"], [str(newest.parents[1])]):
        assert found("script", "train.py", *arguments) == newest


def test_nothing_is_claimed_that_may_be_of_another_launch() -> None:
    table = write("out/lightning_logs/version_0/metrics.csv", TABLE)
    assert found("out") == table
    assert found("out", began=time.time() + 60) is None, "written before this launch"
    assert found(".") is None and found("..") is None and found("--flag", "absent", "a\0b") is None
    write("out/lightning_logs/version_1/metrics.csv", TABLE)
    assert found("out") is None, "there are two"


def test_of_a_folder_with_many_files_only_some_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        write(f"data/{number}.jpg", "")
    looked = list[str]()
    monkeypatch.setattr(trainer_files, "MOST_ENTRIES", 5)
    monkeypatch.setattr(os, "scandir", partial(noting, looked, os.scandir))
    assert found("data") is None and len(looked) == 5


@contextmanager
def noting(names: list[str], scandir: Callable[[Path], Any], folder: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Note each name that is taken from a folder."""
    with scandir(folder) as entries:
        yield (entry for entry in entries if not names.append(entry.name))  # type: ignore[func-returns-value]


def test_a_working_directory_that_was_removed_says_nothing() -> None:
    Path("gone").mkdir()
    os.chdir("gone")
    Path("../gone").rmdir()
    assert found("out") is None


def test_no_link_is_followed_below_the_folder() -> None:
    write("elsewhere/metrics.csv", TABLE)
    Path("out").mkdir()
    Path("out/linked").symlink_to("../elsewhere")
    Path("out/metrics.jsonl").symlink_to("../elsewhere/metrics.csv")
    path = found("out")
    assert path is None or read(path) == Reading()


@pytest.mark.parametrize(("how", "counts"), [(">>", True), ("<", False)])
def test_a_file_that_rank_0_has_open_for_writing_is_its_own(tmp_path: Path, how: str, counts: bool) -> None:
    path, variables = (
        write("runs/metrics.jsonl", ROWS),
        {"CLUSTERRUN_ATTEMPT_DIR": "attempt", "PATH": os.environ["PATH"]},
    )
    with subprocess.Popen(["sh", "-c", f"exec 5{how}{path}; exec sleep 60"], env=variables) as rank:
        until(Path(f"/proc/{rank.pid}/fd/5").exists, 30)
        assert find((), 0.0, rank.pid, Path("attempt")) == (path if counts else None)
        assert find((), 0.0, rank.pid, Path("another")) is None
        rank.kill()


def test_a_file_counts_where_the_script_prints_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterrun.worker.job.progress_follower.FILES_S", 0.0)
    with (tmp_path / "log").open("ab") as log:
        follower = ProgressFollower(tmp_path, print, (log.fileno(),), ["script", "train.py", "--dir", "out"])
        for step in (500, 600):
            write(f"out/checkpoint-{step}/trainer_state.json", json.dumps({**STATE, "global_step": step}))
            follower.look()
        progress = training_progress.load(tmp_path)
        assert progress is not None and (progress.step, progress.steps, progress.loss) == (600, 900, 0.25)
        log.write(b"0: step 7/900 loss 1.5\n0: step 8/900 loss 1.5\n")
        log.flush()
        follower.look()
        progress = training_progress.load(tmp_path)
        assert progress is not None and progress.step == 8
