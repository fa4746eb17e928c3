"""Which checkpoint `resume` means, and the one line for one that is not there or is damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterrun.base.errors import WorkerError
from clusterrun.worker.training import checkpoint, resume
from clusterrun.worker.training.checkpoint import Snapshot


def write(folder: Path, *steps: int) -> list[Path]:
    tensors = {"w": torch.ones(3)}
    return [checkpoint.write(folder, Snapshot(step, tensors, {"optimizer": {}}, {}, "")) for step in steps]


def test_auto_is_the_newest_of_its_own(tmp_path: Path) -> None:
    newest = write(tmp_path, 1, 2)[-1]
    assert resume.find("auto", tmp_path) == (newest, [])


def test_auto_without_any_starts_from_the_beginning(tmp_path: Path) -> None:
    assert resume.find("auto", tmp_path / "checkpoints") == (None, [])


def test_no_starts_from_the_beginning_whatever_there_is(tmp_path: Path) -> None:
    write(tmp_path, 1)
    assert resume.find("no", tmp_path) == (None, [])


def test_auto_walks_back_and_says_so(tmp_path: Path) -> None:
    older, newer = write(tmp_path, 1, 2)
    os.truncate(newer / "trainer.pt", 3)
    path, notes = resume.find("auto", tmp_path)
    assert path == older
    assert len(notes) == 1 and notes[0].startswith("step-00000002: trainer.pt has 3 bytes, but the manifest says ")


def test_auto_with_damaged_ones_alone_starts_from_the_beginning_and_says_so(tmp_path: Path) -> None:
    (write(tmp_path, 1)[0] / "trainer.pt").unlink()
    assert resume.find("auto", tmp_path) == (
        None,
        ["step-00000001: trainer.pt is missing", f"no valid checkpoint in {tmp_path}: starting from the beginning"],
    )


def test_auto_in_what_cannot_be_listed_is_no_fresh_start(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(WorkerError, match=r"cannot be read \(Not a directory\)") as caught:
        resume.find("auto", tmp_path / "checkpoints")
    assert caught.value.status == 1


def test_a_checkpoint_a_folder_of_them_or_a_file_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = write(tmp_path / "other", 1, 2)
    file = tmp_path / "checkpoint_epoch_5.pt"
    file.write_bytes(b"")
    own = tmp_path / "own"
    assert resume.find(str(older), own) == (older, [])
    assert resume.find(str(tmp_path / "other"), own) == (newer, [])
    assert resume.find(str(file), own) == (file, [])
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resume.find("~/other", own) == (newer, [])


def test_a_damaged_checkpoint_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    _, newer = write(tmp_path, 1, 2)
    (newer / "state.json").unlink()
    with pytest.raises(WorkerError) as caught:
        resume.find(str(newer), tmp_path)
    assert str(caught.value) == f"checkpoint {newer} is not valid: state.json is missing"
    assert caught.value.status == 1
    (newer / "manifest.json").unlink()
    with pytest.raises(WorkerError, match=r"is not valid: manifest\.json is missing$"):
        resume.find(str(newer), tmp_path)


def test_a_folder_of_damaged_ones_is_refused_with_each_reason(tmp_path: Path) -> None:
    for path in write(tmp_path, 1, 2):
        (path / "state.json").unlink()
    with pytest.raises(WorkerError) as caught:
        resume.find(str(tmp_path), tmp_path / "own")
    assert str(caught.value) == (
        f"no valid checkpoint in {tmp_path}: step-00000002: state.json is missing; step-00000001: state.json is missing"
    )
    assert caught.value.status == 1


@pytest.mark.parametrize(
    ("given_path", "message"),
    [
        ("runs/chekpoints", r"no such checkpoint \(did you mean 'checkpoints'\?\)$"),
        ("rusn/checkpoints/step-00000001", r"no such checkpoint \(did you mean 'runs'\?\)$"),
        ("runs/checkpoints/step-00000010", r"no such checkpoint \(did you mean 'step-00000001'\?\)$"),
        ("atuo", r"no such checkpoint \(did you mean 'auto'\?\)$"),
        ("runs", "contains no checkpoint"),
        ("notes.txt", "is neither a checkpoint folder nor a .pt file$"),
    ],
)
def test_a_wrong_path_is_a_wrong_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_path: str, message: str
) -> None:
    write(tmp_path / "runs" / "checkpoints", 1)
    (tmp_path / "notes.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkerError, match=message) as caught:
        resume.find(given_path, tmp_path / "own")
    assert caught.value.status == 2


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(min_size=1).filter(lambda text: text not in ("auto", "no")) | st.text("/x~\0", min_size=1, max_size=300))
def test_any_other_text_is_one_line_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkerError) as caught:
        resume.find(text, tmp_path)
    assert len(str(caught.value).splitlines()) == 1
