"""A rank of the user's code ends with its programs when a newer attempt of the run has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusterrun.worker.node import probe
from clusterrun.worker.rank import orphans
from lab.procs import start_time
from tests.support.installed_command import until
from tests.support.patience import HUNG

ROOT = Path(__file__).resolve().parents[2]
# A rank whose code ignores SIGTERM, has a program that runs a program, and counts into a file.
RANK = """
import signal, subprocess, sys, time
from pathlib import Path
from clusterrun.worker.rank.distenv import DistEnv
from clusterrun.worker.rank.progress import Progress, Recorder
folder = Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda signum, frame: (folder / "saved").touch())
Recorder(Progress(), DistEnv(0, 0, 1, 1, 0, "n1", "h1", 0, "slurm", None), folder, every=0.2).start()
subprocess.Popen(["bash", "-c", "sleep 600 & echo $! > sleep.tmp; mv sleep.tmp sleep.pid; wait"], cwd=folder)
while True:
    with open(folder / "counts", "a") as file:
        file.write("1")
    time.sleep(0.01)
"""


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    file = tmp_path / "attempt_number"
    file.write_text("1\n")
    return file


def test_the_rank_and_its_programs_are_killed_and_write_nothing_more(tmp_path: Path, attempt: Path) -> None:
    number = {"CLUSTERRUN_ATTEMPT_NUMBER": "1", "CLUSTERRUN_ATTEMPT_NUMBER_FILE": str(attempt)}
    environ = {**os.environ, **number, "PYTHONPATH": str(ROOT)}
    rank = subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path)], env=environ, stderr=subprocess.PIPE)
    try:
        until((tmp_path / "sleep.pid").exists, 30)
        before = (tmp_path / "counts").stat().st_size
        until(lambda: (tmp_path / "counts").stat().st_size > before + 50, 30)
        assert rank.poll() is None, "its attempt is the newest"
        (tmp_path / "attempt_number.new").write_text("2\n")
        os.replace(tmp_path / "attempt_number.new", attempt)
        _, printed = rank.communicate(timeout=HUNG)
    finally:
        rank.kill()
    assert rank.returncode == -signal.SIGKILL
    assert printed.decode().startswith("clusterrun: rank 0: a newer attempt of this run has started")
    program = int((tmp_path / "sleep.pid").read_text())
    until(lambda: start_time(program) is None, 10)
    assert not (tmp_path / "saved").exists(), "a script may save a checkpoint on SIGTERM"


def test_an_attempt_number_that_cannot_be_read_ends_nothing(
    tmp_path: Path, attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERRUN_ATTEMPT_NUMBER", "1")
    monkeypatch.setenv("CLUSTERRUN_ATTEMPT_NUMBER_FILE", str(attempt))
    orphans.end_if_superseded(0)
    attempt.unlink()
    with pytest.raises(OSError, match="attempt_number"):
        orphans.end_if_superseded(0)


def test_descendants_are_found_over_generations() -> None:
    with subprocess.Popen(["bash", "-c", "sleep 600 & wait"], start_new_session=True) as shell:
        try:
            (program,) = until(lambda: probe.descendants(shell.pid), 10)
            assert {shell.pid, program} <= {*probe.descendants(os.getpid())}
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


def test_processes_that_end_while_they_are_listed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a busy machine: /proc answers ESRCH, which Path.glob and Path.exists raise."""
    read_text = Path.read_text

    def read(path: Path, **how: str) -> str:
        if path.parts[1:3] == ("proc", str(ended.pid)):
            raise ProcessLookupError(3, "No such process")
        return read_text(path, **how)

    with subprocess.Popen(["sleep", "600"]) as ended, subprocess.Popen(["sleep", "600"]) as alive:
        try:
            monkeypatch.setattr(Path, "read_text", read)
            assert alive.pid in probe.children() and ended.pid not in probe.children()
        finally:
            ended.kill()
            alive.kill()
