"""The end of a job's time limit moves: the supervisor asks Slurm again, and rank 0 stops by a recent answer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterrun.run_folder.claims import JobIdentity
from clusterrun.run_folder.end_time import FILE
from clusterrun.worker.job.time_limit import TimeLimit
from clusterrun.worker.training.stopping import KnownEnd
from tests.support.installed_command import until
from tests.support.slurm_stand_ins import Slurm


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


@pytest.fixture
def asking(tmp_path: Path, slurm: Slurm) -> Callable[[float], TimeLimit]:
    def make(end: float) -> TimeLimit:
        folder = tmp_path / "attempt"
        folder.mkdir()
        job: Any = SimpleNamespace(slurm_id="5", identity=JobIdentity("lab", "5", "", 0), name="5", attempt_dir=folder)
        return TimeLimit(job, str(int(end)), lambda end: end)

    return make


def written(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "attempt" / FILE).read_text()))


def test_a_raised_limit_is_written_and_said(
    asking: Callable[[float], TimeLimit], tmp_path: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.time()
    limit = asking(now + 100)
    slurm.show(EndTime=stamp(now + 7300))
    limit.look()
    assert abs(written(tmp_path)["end"] - now - 7300) < 2
    assert f"job 5: the time limit now ends at {stamp(now + 7300)[11:]}" in capsys.readouterr().err


def test_a_slurm_that_is_silent_moves_no_end(
    asking: Callable[[float], TimeLimit], tmp_path: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = asking(time.time() + 100)
    (slurm.folder / "away").touch()
    limit.look()
    assert not (tmp_path / "attempt" / FILE).exists() and capsys.readouterr().err == ""


SUSPENDED = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from clusterrun.worker.job import time_limit
from clusterrun.run_folder.claims import JobIdentity
time_limit.WAKE_S = 0.2
job = SimpleNamespace(slurm_id="5", identity=JobIdentity("lab", "5", "", 0), name="5", attempt_dir=Path(sys.argv[1]))
time_limit.TimeLimit(job, sys.argv[2], lambda end: end).start()
time.sleep(300)
"""


def suspend(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    time.sleep(1)  # longer than two looks at the clock are apart
    process.send_signal(signal.SIGCONT)


def test_slurm_is_asked_at_once_after_a_suspension(tmp_path: Path, slurm: Slurm) -> None:
    now = time.time()
    slurm.show(EndTime=stamp(now + 90000))
    (tmp_path / "attempt").mkdir()
    words = [sys.executable, "-c", SUSPENDED, str(tmp_path / "attempt"), str(int(now + 86400))]
    process = subprocess.Popen(words)
    try:
        until((tmp_path / "attempt" / FILE).exists, 60)
        until(lambda: suspend(process) or abs(written(tmp_path)["end"] - now - 90000) < 2, 60)
    finally:
        process.kill()
        process.wait()


def known(folder: Path, end: float, *, checked_ago: float) -> KnownEnd:
    (folder / FILE).write_text(json.dumps({"version": 1, "end": int(end), "checked": time.time() - checked_ago}))
    return KnownEnd(folder, time.time() + 5)


def test_a_rank_stops_by_the_newest_end(tmp_path: Path) -> None:
    assert not known(tmp_path, time.time() + 3600, checked_ago=1).is_near(60)
    assert known(tmp_path, time.time() + 30, checked_ago=1).is_near(60)


def test_a_rank_does_not_stop_by_an_answer_from_before_a_suspension(tmp_path: Path) -> None:
    end = known(tmp_path, time.time() + 30, checked_ago=500)
    assert not end.is_near(60)
    known(tmp_path, time.time() + 600, checked_ago=0)
    end._next_look = 0.0
    assert not end.is_near(60), "the answer after it"


def test_a_rank_does_not_wait_long_for_a_silent_slurm(tmp_path: Path) -> None:
    end = known(tmp_path, time.time() + 30, checked_ago=500)
    assert not end.is_near(60)
    end._near_since = time.monotonic() - 16
    assert end.is_near(60)


def test_without_a_file_the_first_end_counts(tmp_path: Path) -> None:
    assert KnownEnd(tmp_path, time.time() + 30).is_near(60) and not KnownEnd(tmp_path, time.time() + 90).is_near(60)
    assert not KnownEnd(None, None).is_near(60)
