"""A job starts its ranks again after a failure, within its allocation, on this machine and on Slurm."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.hangs import HANG, stop_and_await
from tests.support.installed_command import ONE_RANK, Site, until
from tests.support.lm_runs import LIMIT, SHAPE, STEPS, lm, saved, slow, weights


def test_a_killed_and_a_stopped_rank_cost_the_steps_since_the_last_checkpoint_and_nothing_else(
    site: Site, undisturbed: str
) -> None:
    job = lm(site, STEPS, "--max-restarts", "3", *HANG, *slow(starts=2), "--set", "log_every=1")
    until(lambda: saved(job) >= 10, LIMIT, job.err.read_text)
    os.kill(job.pid(1), signal.SIGKILL)
    until(lambda: len(job.attempts()) == 2, LIMIT, job.err.read_text)
    before = saved(job)
    until(lambda: saved(job) > before, LIMIT, job.err.read_text)
    ended = stop_and_await(job, 1)
    state = site.wait_state(job, "COMPLETED", "FAILED", timeout=LIMIT)
    assert state["state"] == "COMPLETED", job.err.read_text()
    assert weights(job) == undisturbed
    assert [attempt.name.partition(".")[2] for attempt in job.attempts()] == ["0.0", "0.1", "0.2"]
    killed, hung = state["failed_launches"]
    assert "rank 1 ended without reporting a status" in killed
    assert "rank 1 on" in hung and ended.after > float(HANG[1]) / 2
    assert "; restarting the ranks" in job.err.read_text()
    status = site.cli("status", job.id).stdout
    assert "launch  3; the previous launch failed: no progress for 10 s: rank 1 on" in status
    assert "stopped (SIGSTOP)" in status
    assert "2 restarts cost" in status
    assert all(len(launch["nodes"]) == 2 for launch in state["launches"])
    *failed, last = state["launches"]
    assert all(launch["status"] != 0 and launch["lost_s"] > 0 for launch in failed) and last["status"] == 0
    assert 0 < state["goodput"]["share"] < 1 and state["goodput"]["restarts"] == 2
    again = site.cli("logs", job.id, "--attempt", "0.2").stdout
    assert "resumed from" in again and f"step {STEPS}/{STEPS}" in again and f"step   1/{STEPS}" not in again


@pytest.mark.parametrize("site", ["local"], indirect=True)  # on Slurm: test_resume.py has --resume-args
def test_the_same_error_of_a_script_is_met_once_more_and_then_named(site: Site, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "folder = os.environ['CLUSTERRUN_CHECKPOINT_DIR']\n"
        "print('start', os.environ['CLUSTERRUN_RESTART'], sys.argv[1:], folder, os.path.isdir(folder))\n"
        "raise KeyError('target')\n"
    )
    words = ("--max-restarts", "5", "--resume-args", "--resume 'a b'", "--", str(script), "--lr", "1")
    job = site.submit(*ONE_RANK, *words)
    site.wait_state(job, "FAILED", timeout=LIMIT)
    assert len(job.attempts()) == 2
    out, checkpoints = job.out.read_text(), job.run_dir / "checkpoints"
    assert f"0: start 0 ['--lr', '1'] {checkpoints} True\n" in out
    assert f"0: start 1 ['--lr', '1', '--resume', 'a b'] {checkpoints} True\n" in out
    assert "the previous launch failed with the same error at the same step" in job.err.read_text()
    why = site.json("why", job.id)
    assert "train.py:4" in json.dumps(why), why


def test_a_cancel_starts_nothing_again(site: Site) -> None:
    job = site.submit(*SHAPE, "--max-restarts", "5", "--", "sleep", "600")
    site.wait_joined(job, LIMIT)
    site.cli("cancel", job.id, "--yes")
    site.wait_state(job, "CANCELLED")
    assert len(job.attempts()) == 1
