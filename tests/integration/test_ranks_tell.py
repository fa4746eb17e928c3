"""Real ranks keep their progress records: in a script, in a command, in training, and while one of them is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterrun.records.progress import RankProgress, read_ranks
from tests.support.patience import HUNG

from .conftest import Starter

OFTEN = {"CLUSTERRUN_PROGRESS_INTERVAL": "0.2"}


def wait_for(
    attempt: Path, wanted: Callable[[list[RankProgress]], bool], process: subprocess.Popen[str]
) -> list[RankProgress]:
    """Wait until the ranks say what is wanted, and return what they say."""
    deadline = time.monotonic() + 2 * HUNG
    while time.monotonic() < deadline and process.poll() is None:
        if wanted(found := read_ranks(attempt)):
            return found
        time.sleep(0.02)
    raise AssertionError(f"never said: {read_ranks(attempt)}")


def test_a_stopped_rank_is_the_silent_one(step: Starter, tmp_path: Path) -> None:
    attempt = tmp_path / "attempt"

    def stop_one(process: subprocess.Popen[str], helper: object) -> None:
        wait_for(attempt, lambda found: [one.phase for one in found] == ["script"] * 2, process)
        pids = [rank["pid"] for rank in json.loads((attempt / "start.json").read_text())["ranks"]]
        assert [one.pid for one in read_ranks(attempt)] == pids
        os.kill(pids[1], signal.SIGSTOP)
        try:
            stopped = time.time()
            found = wait_for(attempt, lambda found: found[0].time > stopped + 1, process)
            assert found[1].time < stopped + 0.5
        finally:
            os.kill(pids[1], signal.SIGCONT)
        wait_for(attempt, lambda found: found[1].time > stopped + 1, process)
        os.kill(process.pid, signal.SIGTERM)

    step(1, 2, "script", "--", "worker/hangs.py", environ=OFTEN, during=stop_one)


def test_training_tells_its_steps_and_phases(step: Starter, tmp_path: Path) -> None:
    seen: dict[int, set[str]] = {0: set(), 1: set()}
    steps: list[int] = []

    def look(process: subprocess.Popen[str], helper: object) -> None:
        deadline = time.monotonic() + HUNG
        while process.poll() is None and time.monotonic() < deadline:
            for one in read_ranks(tmp_path / "attempt"):
                seen[one.rank].add(one.phase)
                steps.append(one.step or 0)
            time.sleep(0.02)

    small = ("vocab=300", "seq_len=16", "global_batch_size=8", "steps=200", "eval_every=0")
    done = step(1, 2, "task", "lm", *small, environ=OFTEN, during=look)
    assert done.status == 0, done.err
    assert {"loading", "training"} <= seen[0] & seen[1]
    assert len(set(steps)) > 3
    first, other = read_ranks(done.run_dir / "attempt")
    assert (first.step, first.steps, other.step, other.steps) == (200, 200, 200, 200)
    assert first.tokens_per_second is not None and other.tokens_per_second is None


@pytest.mark.parametrize("mode", ["command"])
def test_a_command_is_told_as_a_script(step: Starter, tmp_path: Path, mode: str) -> None:
    done = step(1, 1, mode, "--", "sleep", "1", environ=OFTEN)
    assert done.status == 0, done.err
    (one,) = read_ranks(tmp_path / "attempt")
    assert one.phase in ("script", "ending")
