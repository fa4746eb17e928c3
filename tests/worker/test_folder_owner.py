"""A folder of checkpoints has one writer: another run is refused while the first lives, and deletes none of its."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterrun.base.errors import WorkerError
from clusterrun.run_folder.attempt_number import Superseded
from clusterrun.worker.rank.distenv import RunEnv
from clusterrun.worker.training import checkpoint, folder_owner
from clusterrun.worker.training.background_writer import BackgroundWriter
from clusterrun.worker.training.checkpoint import Snapshot
from tests.support.rank_files import put_end, put_progress
from tests.worker.small_training import go, run_env

pytestmark = pytest.mark.usefixtures("signals_as_before")


def run(folder: Path, name: str) -> RunEnv:
    """A run whose attempt folder has a progress record of this moment, as a living rank 0 keeps it."""
    attempt = folder / name / "attempt"
    attempt.mkdir(parents=True)
    put_progress(attempt, 0, {})
    return RunEnv(run_id=name, run_dir=folder / name, attempt_dir=attempt)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept"


def test_another_run_is_refused_while_the_first_lives_and_hears_who_holds_it(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERRUN_JOB_ID", "140")
    check, _ = folder_owner.claim(kept, run(tmp_path, "a"))
    before = (kept / "owner.json").read_bytes()
    with pytest.raises(WorkerError) as caught:
        folder_owner.claim(kept, run(tmp_path, "b"))
    assert caught.value.status == 2
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime())
    assert str(caught.value).startswith(f"checkpoint_dir={kept} is in use by run a (job 140, since {since[:13]}")
    reader = f"(you can still set resume={kept}, which only reads checkpoints)"
    assert str(caught.value).endswith(f"set another checkpoint_dir {reader}")
    check()
    assert (kept / "owner.json").read_bytes() == before


def end_record(attempt: Path) -> None:
    (attempt / "end.json").write_text("{}")


def end_mark(attempt: Path) -> None:
    put_end(attempt, 0, {})


def silence(attempt: Path) -> None:
    os.utime(attempt / "node-0.ranks", (time.time() - folder_owner.SILENT_S - 1,) * 2)


def removal(attempt: Path) -> None:
    for path in attempt.iterdir():
        path.unlink()
    attempt.rmdir()


@pytest.mark.parametrize("end", [end_record, end_mark, silence, removal])
def test_the_folder_of_a_run_that_no_longer_lives_is_taken_over(tmp_path: Path, kept: Path, end: Any) -> None:
    first = run(tmp_path, "a")
    check, _ = folder_owner.claim(kept, first)
    assert first.attempt_dir is not None
    end(first.attempt_dir)
    check_second, notes = folder_owner.claim(kept, run(tmp_path, "b"))
    assert len(notes) == 1 and notes[0].startswith("took over checkpoint_dir from run a (since ")
    check_second()
    with pytest.raises(Superseded, match="now belongs to run b"):  # it was only cut off, and comes back
        check()


def test_the_same_run_continues_and_its_older_attempt_stops(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = run(tmp_path, "a")
    monkeypatch.setenv("CLUSTERRUN_ATTEMPT_NUMBER", "1")
    check_older, _ = folder_owner.claim(kept, env)
    monkeypatch.setenv("CLUSTERRUN_ATTEMPT_NUMBER", "2")
    check_newer, notes = folder_owner.claim(kept, env)
    assert notes == []
    check_newer()
    with pytest.raises(Superseded):
        check_older()


def test_of_two_that_come_at_once_one_is_the_owner(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = run(tmp_path, "a"), run(tmp_path, "b")
    link = os.link

    def slower(old: Any, new: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        folder_owner.claim(kept, first)  # between the look of the second and its own link
        link(old, new)

    monkeypatch.setattr(os, "link", slower)
    with pytest.raises(WorkerError, match="in use by run a"):
        folder_owner.claim(kept, second)
    assert os.listdir(kept) == ["owner.json"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"run_id": 1, "job_id": 2, "attempt_number": "x"}', '{"time": 1e999}']
)
def test_a_damaged_owner_is_no_owner(tmp_path: Path, kept: Path, content: str) -> None:
    (kept / "owner.json").write_text(content)
    check, _ = folder_owner.claim(kept, run(tmp_path, "a"))
    check()
    assert json.loads((kept / "owner.json").read_text())["run_id"] == "a"


def test_a_pipe_in_place_of_the_owner_hangs_nothing(tmp_path: Path, kept: Path) -> None:
    os.mkfifo(kept / "owner.json")
    with pytest.raises(WorkerError, match="not a regular file, or too large"):
        go(tmp_path / "a", checkpoint_dir=str(kept))


def snapshot(step: int, run_id: str) -> Snapshot:
    return Snapshot(step, {"w": torch.ones(1)}, {"optimizer": {}, "scaler": None}, {"run_id": run_id}, "{}")


def test_another_runs_checkpoints_are_never_pruned(kept: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.write(kept, snapshot(step, "a"))
    saver = BackgroundWriter(kept, keep_last=1, run_id="b")
    for step in (4, 5, 6):
        saver.save(snapshot(step, "b"))
    saver.wait()
    assert sorted(step for step, _ in checkpoint.found(kept)) == [1, 2, 3, 6]


def test_the_next_run_goes_on_in_the_folder_and_leaves_the_first_ones_checkpoints(tmp_path: Path, kept: Path) -> None:
    def train(name: str, **settings: Any) -> None:
        env = RunEnv(run_id=name, run_dir=tmp_path / name, attempt_dir=run_env(tmp_path / name).attempt_dir)
        go(tmp_path / name, env=env, checkpoint_dir=str(kept), keep_last=1, eval_every=0, **settings)

    train("a", steps=4, save_every=2)
    train("b", steps=12, save_every=4)
    assert sorted(step for step, _ in checkpoint.found(kept)) == [4, 12]
    with pytest.raises(WorkerError, match=r"has checkpoints of run b: set another checkpoint_dir") as caught:
        train("c", steps=20, resume=str(kept / "step-00000004"))  # its step 12 would replace that of b
    assert caught.value.status == 2
    train("d", steps=14, resume=str(kept))
    assert sorted(step for step, _ in checkpoint.found(kept)) == [4, 12, 14]
