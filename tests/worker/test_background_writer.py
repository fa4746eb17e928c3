"""The writer thread: training goes on while it writes, a failed write is loud, and an exit loses nothing."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterrun.worker.training import checkpoint
from clusterrun.worker.training.background_writer import BackgroundWriter
from clusterrun.worker.training.checkpoint import Snapshot
from tests.support.patience import HUNG


def numbered(step: int, size: int = 8) -> Snapshot:
    weights = torch.full((size,), float(step))
    return Snapshot(step, {"w": weights}, {"optimizer": {}, "scaler": None}, {}, "{}")


def steps(folder: Path) -> list[int]:
    return sorted(step for step, _ in checkpoint.found(folder))


class Gate:
    """A disk that takes its time: writes begin, and then wait until they are let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Semaphore(0)
        self.writing = 0
        self.most = 0
        real = checkpoint.write

        def slow(folder: Path, snapshot: Snapshot, *check: Any) -> Path:
            self.writing += 1
            self.most = max(self.most, self.writing)
            self.begun.release()
            assert self.open.acquire(timeout=HUNG)
            self.writing -= 1
            return real(folder, snapshot, *check)

        monkeypatch.setattr(checkpoint, "write", slow)


def test_save_returns_while_the_write_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    saver = BackgroundWriter(tmp_path, keep_last=2)
    saver.save(numbered(1))
    assert gate.begun.acquire(timeout=HUNG)
    assert (saver.last_saved, steps(tmp_path), saver.wait(timeout=0)) == (None, [], False)
    gate.open.release()
    assert saver.wait() is True
    assert (saver.last_saved, steps(tmp_path), saver.failure) == (1, [1], None)
    assert saver.seconds > 0


def test_a_second_save_waits_for_the_first_and_counts_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    saver = BackgroundWriter(tmp_path, keep_last=2)
    saver.save(numbered(1))
    waiting, real_wait = threading.Event(), saver.wait
    monkeypatch.setattr(saver, "wait", lambda: (waiting.set(), real_wait()))
    stalls: list[float] = []
    second = threading.Thread(target=lambda: stalls.append(saver.save(numbered(2))))
    second.start()
    assert waiting.wait(HUNG)
    began = time.monotonic()
    second.join(0.05)
    assert stalls == [] and second.is_alive()
    stalled = time.monotonic() - began
    gate.open.release(2)
    second.join(HUNG)
    real_wait()
    assert stalls[0] >= stalled
    assert (steps(tmp_path), gate.most) == ([1, 2], 1)


def test_it_prunes_after_each_save_and_keeps_the_best_also_for_the_next_attempt(tmp_path: Path) -> None:
    saver = BackgroundWriter(tmp_path, keep_last=1)
    for step in (1, 2, 3):
        saver.save(numbered(step), best=step == 2)
    saver.wait()
    assert steps(tmp_path) == [2, 3]
    assert json.loads((tmp_path / "best.json").read_text()) == {"step": 2}

    resumed = BackgroundWriter(tmp_path, keep_last=1, in_use=tmp_path / "step-00000003")
    assert resumed.best == 2
    for step in (4, 5):
        resumed.save(numbered(step))
    resumed.wait()
    assert steps(tmp_path) == [2, 3, 5]


def test_a_failed_write_is_loud_and_the_next_one_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "checkpoints"
    saver = BackgroundWriter(folder, keep_last=1)
    folder.write_text("a file where the folder should be")  # a real error of the system, for root too
    saver.save(numbered(1), best=True)
    saver.wait()
    assert saver.failure == "File exists"
    assert capsys.readouterr().err == (
        f"clusterrun: CHECKPOINT of step 1 NOT SAVED: File exists ({folder}); training continues;"
        " no good checkpoint exists yet\n"
    )
    folder.unlink()
    saver.save(numbered(2))
    saver.wait()
    assert (saver.failure, saver.last_saved, saver.best) == (None, 2, None)

    def lost(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", lost)
    saver.save(numbered(3))
    saver.wait()
    assert capsys.readouterr().err == (
        f"clusterrun: CHECKPOINT of step 3 NOT SAVED: Input/output error ({folder}); training continues;"
        " the last good checkpoint is step 2\n"
    )
    assert (saver.last_saved, steps(folder)) == (2, [2])


def test_a_failure_before_the_first_save_names_the_one_resumed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saver = BackgroundWriter(tmp_path, keep_last=1, in_use=checkpoint.write(tmp_path, numbered(5)))
    monkeypatch.setattr(checkpoint, "write", lambda *_: torch.zeros(1).reshape(7))  # no OSError: a fault of ours
    saver.save(numbered(6))
    saver.wait()
    error = capsys.readouterr().err
    assert "CHECKPOINT of step 6 NOT SAVED: RuntimeError: shape" in error
    assert error.endswith("training continues; the last good checkpoint is step-00000005\n")


def test_an_old_one_that_cannot_be_deleted_is_told_and_fails_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checkpoint, "prune", refuse)
    saver = BackgroundWriter(tmp_path, keep_last=1)
    saver.save(numbered(1))
    saver.wait()
    assert (saver.last_saved, saver.failure) == (1, None)
    assert "saved step 1; cannot delete old checkpoints" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "[]", '{"step": null}', '{"step": "x"}', "\udcff"])
def test_a_damaged_best_is_no_best(tmp_path: Path, content: str) -> None:
    (tmp_path / "best.json").write_text(content, errors="surrogateescape")
    assert BackgroundWriter(tmp_path, keep_last=1).best is None


def test_an_exit_of_the_interpreter_waits_for_the_write(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import sys, threading, time
        from pathlib import Path
        import torch
        from clusterrun.worker.training import checkpoint
        from clusterrun.worker.training.background_writer import BackgroundWriter
        main_is_over = threading.main_thread().join  # returns once the interpreter is on its way out
        write = checkpoint.write
        checkpoint.write = lambda *given: (main_is_over(), write(*given))
        snapshot = checkpoint.Snapshot(7, {{"w": torch.ones(9)}}, {{"optimizer": {{}}, "scaler": None}}, {{}}, "")
        BackgroundWriter(Path({str(tmp_path)!r}), keep_last=1).save(snapshot)
        sys.exit(3)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (3, "")
    assert checkpoint.newest_valid(tmp_path) == (tmp_path / "step-00000007", [])
