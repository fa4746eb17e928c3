"""A process of an older attempt gives nothing its name, appends nothing, deletes nothing, and stops."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterrun.base.errors import WorkerError
from clusterrun.run_folder import attempt_number
from clusterrun.run_folder.attempt_number import Superseded
from clusterrun.worker.data.prepared import _make
from clusterrun.worker.models.export import export
from clusterrun.worker.rank.distenv import RunEnv
from clusterrun.worker.training import checkpoint
from clusterrun.worker.training.background_writer import BackgroundWriter
from clusterrun.worker.training.checkpoint import Snapshot
from clusterrun.worker.training.checkpointing import _take
from clusterrun.worker.training.report import Report, _append
from clusterrun.worker.training.settings import Training
from tests.worker.small_models import make_model
from tests.worker.small_training import Counting, go

Raise = Callable[[], None]


@pytest.fixture
def begin_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Raise:
    """This process is of attempt 1; a call makes 2 the newest, as the next attempt's batch script does."""
    file = tmp_path / "attempt_number"
    file.write_text("1\n")
    monkeypatch.setenv("CLUSTERRUN_ATTEMPT_NUMBER", "1")
    monkeypatch.setenv("CLUSTERRUN_ATTEMPT_NUMBER_FILE", str(file))

    def raise_it() -> None:
        (tmp_path / "attempt_number.new").write_text("2\n")
        os.replace(tmp_path / "attempt_number.new", file)

    return raise_it


def state(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its content."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def numbered(step: int) -> Snapshot:
    weights = torch.full((8,), float(step))
    return Snapshot(step, {"w": weights}, {"optimizer": {}, "scaler": None}, {"run_id": "r1"}, "{}")


def test_the_newest_attempt_may_write_and_an_older_one_is_told_which_is(begin_attempt: Raise) -> None:
    attempt_number.check()
    begin_attempt()
    with pytest.raises(
        Superseded,
        match=r"a newer attempt .* has started \(the attempt counter is now 2; it was 1 when this process started\)",
    ) as it:
        attempt_number.check()
    assert it.value.status != 0


def test_a_script_run_by_hand_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLUSTERRUN_ATTEMPT_NUMBER", raising=False)
    monkeypatch.delenv("CLUSTERRUN_ATTEMPT_NUMBER_FILE", raising=False)
    attempt_number.check()


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_text("x"), os.truncate])
def test_an_attempt_number_that_cannot_be_read_is_no_leave_to_write(
    tmp_path: Path, begin_attempt: Raise, damage: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(tmp_path / "attempt_number", *([0] if damage is os.truncate else []))
    with pytest.raises(OSError):
        attempt_number.check()
    saver = BackgroundWriter(tmp_path / "kept", keep_last=1)
    saver.save(numbered(1))
    saver.wait()
    assert "CHECKPOINT of step 1 NOT SAVED" in capsys.readouterr().err and saver.last_saved is None


@pytest.mark.parametrize("moment", range(7))
def test_once_a_newer_attempt_begins_no_name_changes_any_more(
    tmp_path: Path, begin_attempt: Raise, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer thread replaces a checkpoint, moves `latest` and best.json, and prunes: six changes of a name."""
    folder = tmp_path / "kept"
    for step in (1, 2, 3):
        checkpoint.write(folder, numbered(step))
    rename = os.rename
    changes: list[str] = []

    def counted(old: Any, new: Any, **folders: int) -> None:
        rename(old, new, **folders)
        changes.append(str(new))
        if len(changes) == moment:
            begin_attempt()

    monkeypatch.setattr(os, "rename", counted)
    saver = BackgroundWriter(folder, keep_last=1)
    if moment == 0:
        begin_attempt()
    saver.save(numbered(3), best=True)
    if moment < 6:
        with pytest.raises(Superseded):
            saver.wait()
        assert len(changes) == moment
    else:
        saver.wait()
        assert len(changes) == 6, "all that this save does"
    assert [name for name in os.listdir(folder) if name.startswith(".tmp-")] == []
    assert checkpoint.newest_valid(folder)[0] is not None


def test_a_save_that_is_on_its_way_when_a_newer_attempt_begins_ends_the_process(
    tmp_path: Path, begin_attempt: Raise, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.write(tmp_path / "kept", numbered(1))
    before = state(tmp_path / "kept")
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (begin_attempt(), fsync(descriptor)))
    saver = BackgroundWriter(tmp_path / "kept", keep_last=1)
    saver.save(numbered(2))
    with pytest.raises(Superseded):
        saver.save(numbered(3))
    assert state(tmp_path / "kept") == before


@pytest.mark.parametrize("tensorboard", [False, True])
def test_no_row_no_sample_and_no_event_is_appended(
    tmp_path: Path, begin_attempt: Raise, tensorboard: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunEnv(run_id="r1", run_dir=tmp_path)
    report = Report(0, run, Training(tensorboard=tensorboard), 0, {})
    report.row(1, 2, {"loss": 1.0})
    report.sample(1, "a", "b")
    begin_attempt()
    capsys.readouterr()
    before = state(tmp_path)
    with pytest.raises(Superseded):
        report.row(2, 2, {"loss": 1.0})
    with pytest.raises(Superseded):
        report.sample(2, "a", "b")
    with pytest.raises(Superseded):
        Report(0, run, Training(tensorboard=tensorboard), 1, {})
    report.close()
    assert state(tmp_path) == before
    assert capsys.readouterr().out == ""


def test_no_model_is_exported(tmp_path: Path, begin_attempt: Raise, monkeypatch: pytest.MonkeyPatch) -> None:
    export(make_model(), None, tmp_path / "out", run_id="r1", card={})
    before = state(tmp_path / "out")
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (begin_attempt(), fsync(descriptor)))  # while it is written
    for _ in range(2):
        with pytest.raises(Superseded):
            export(make_model(seed=2), None, tmp_path / "out", run_id="r1", card={})
        assert state(tmp_path / "out") == before
        assert sorted(os.listdir(tmp_path)) == ["attempt_number", "out"]


def test_an_older_attempt_takes_no_stop_file_from_the_newer(
    tmp_path: Path, begin_attempt: Raise, signals_as_before: None
) -> None:
    (tmp_path / "STOP").touch()

    class Raising(Counting):
        def batch(self, indices: Any) -> Any:
            begin_attempt()
            return super().batch(indices)

    with pytest.raises(Superseded):
        go(tmp_path, Raising(64))
    assert (tmp_path / "STOP").exists() and not (tmp_path / "attempt" / "stopped").exists()


@pytest.fixture
def renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run's folder in a project that was renamed while this process ran."""
    run_dir = tmp_path / "project" / ".clusterrun" / "runs" / "r1"
    monkeypatch.setenv("CLUSTERRUN_ATTEMPT_NUMBER", "1")
    monkeypatch.setenv("CLUSTERRUN_ATTEMPT_NUMBER_FILE", str(run_dir / "attempt_number"))
    return run_dir


def test_a_renamed_project_is_not_made_again(renamed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunEnv(run_id="r1", run_dir=renamed)
    with pytest.raises(WorkerError, match="was the project renamed, moved or removed while the job ran"):
        _take(renamed / "checkpoints", run)
    with pytest.raises(WorkerError, match=r"cannot write the model to .*was the project renamed"):
        export(make_model(), None, renamed / "model", run_id="r1", card={})
    with pytest.raises(WorkerError, match=r"cannot write to the cache folder .*was the project renamed"):
        _make(renamed.parents[1] / "cache" / "lm-1", {}, lambda folder: {})
    saver = BackgroundWriter(renamed / "checkpoints", keep_last=1)
    saver.save(numbered(1))
    saver.wait()
    _append(renamed / "metrics.jsonl", {"step": 1})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all("was the project renamed" in line for line in lines), lines
    assert [*tmp_path.iterdir()] == []
