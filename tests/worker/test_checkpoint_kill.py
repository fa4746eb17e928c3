"""kill -9 while a checkpoint is written costs that checkpoint at the most, wherever it hits."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from clusterrun.worker.training import atomic_files, checkpoint, resume
from clusterrun.worker.training.checkpoint import Snapshot

WRITER = {checkpoint.__file__, atomic_files.__file__}


def numbered(step: int, size: int = 8) -> Snapshot:
    """A state in which every number is the step."""
    weights = torch.full((size,), float(step))
    return Snapshot(step, {"w": weights}, {"optimizer": {"m": weights.clone()}, "scaler": None}, {}, "{}")


def newest_step(folder: Path) -> int:
    """The step a run would go on from, after a look that all of it is of that step."""
    for _, path in checkpoint.found(folder):
        if path.suffix != ".replaced":  # one that is being deleted already
            checkpoint.verify(path)
    path, skipped = checkpoint.newest_valid(folder)
    assert path is not None and skipped == []
    loaded = resume.load(path)
    assert loaded.trainer is not None
    assert loaded.tensors["w"].eq(loaded.step).all() and loaded.trainer["optimizer"]["m"].eq(loaded.step).all()
    return loaded.step


def child(work: Callable[[Callable[[int], Any]], None]) -> tuple[int, int]:
    """Fork a process that does `work(report)`; returns its id and the end of the pipe with its reports."""
    reports, reporting = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reports)
            torch.set_num_threads(1)  # OpenMP's other threads are not forked, and would be waited for
            work(lambda step: os.write(reporting, f"{step}\n".encode()))
        finally:
            os._exit(0)  # never back into pytest
    os.close(reporting)
    return pid, reports


def last_report(reports: int) -> int:
    """The last step that the child, which has ended, reported as durable; 0 for none."""
    with os.fdopen(reports) as lines:
        return max([0, *(int(line) for line in lines)])


def test_kills_at_random_moments_lose_no_more_than_the_save_they_hit(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, numbered(1))
    draw = random.Random(7)
    in_the_middle = 0
    for _ in range(25):
        start = newest_step(tmp_path)

        def save_for_ever(report: Callable[[int], Any], start: int = start) -> None:
            for step in range(start + 1, start + 10_000):
                checkpoint.write(tmp_path, numbered(step, size=100_000))
                report(step)
                checkpoint.prune(tmp_path, keep_last=2)

        pid, reports = child(save_for_ever)
        first = b""
        while not first.endswith(b"\n"):
            first += os.read(reports, 1)
        time.sleep(draw.uniform(0, 0.02))  # the moment of the kill is what is drawn here
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        reported = max(int(first), last_report(reports))
        assert reported <= newest_step(tmp_path) <= reported + 1
        in_the_middle += any(name.startswith(".tmp-") for name in os.listdir(tmp_path))
    assert in_the_middle > 0, "no kill hit a write: this proves nothing"
    checkpoint.write(tmp_path, numbered(1_000_000))
    assert [name for name in os.listdir(tmp_path) if name.startswith(".tmp-")] == []


def two_saves(folder: Path, report: Callable[[int], Any]) -> None:
    checkpoint.write(folder, numbered(3))
    report(3)
    checkpoint.prune(folder, keep_last=2)
    checkpoint.write(folder, numbered(3))  # the same step again: the first of them is in the way


def lines_of_the_writer(folder: Path) -> list[tuple[str, int]]:
    """Every line of the writer's code that two_saves passes."""
    seen: dict[tuple[str, int], None] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename in WRITER:
            if event == "line":
                seen[frame.f_code.co_filename, frame.f_lineno] = None
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        two_saves(folder, lambda step: None)
    finally:
        sys.settrace(before)
    return list(seen)


def dying_at(line: tuple[str, int], visit: str, folder: Path) -> Callable[[Callable[[int], Any]], None]:
    """Two saves that end with kill -9 at a line of the writer: the first time it is reached, or in the second save."""

    def work(report: Callable[[int], Any]) -> None:
        armed = visit == "first"

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if armed and event == "line" and (frame.f_code.co_filename, frame.f_lineno) == line:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace if frame.f_code.co_filename in WRITER else None

        def reported(step: int) -> None:
            nonlocal armed
            armed = True
            report(step)

        sys.settrace(trace)
        two_saves(folder, reported)

    return work


@pytest.mark.parametrize("visit", ["first", "second"])
def test_a_kill_at_any_line_of_the_writer_loses_no_more_than_that_save(
    tmp_path: Path, visit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # slow, and kill -9 takes nothing that the kernel has
    for step in (1, 2):
        checkpoint.write(tmp_path / "before", numbered(step))
    lines = lines_of_the_writer(Path(shutil.copytree(tmp_path / "before", tmp_path / "rehearsal")))
    assert len(lines) > 60
    if visit == "second":  # the files are written as in the first; what is in the way is checkpoint.py's business
        lines = [line for line in lines if line[0] == checkpoint.__file__]
    killed = 0
    for number, line in enumerate(lines):
        folder = Path(shutil.copytree(tmp_path / "before", tmp_path / str(number)))
        pid, reports = child(dying_at(line, visit, folder))
        killed += os.waitpid(pid, 0)[1] == signal.SIGKILL
        reported = max(2, last_report(reports))
        assert reported <= newest_step(folder), f"killed at {line}"
        checkpoint.write(folder, numbered(4))
        assert newest_step(folder) == 4
        assert [name for name in os.listdir(folder) if name.startswith(".tmp-")] == []
    assert killed >= len(lines) // 2, "the second save passes most of the lines, the first all"
