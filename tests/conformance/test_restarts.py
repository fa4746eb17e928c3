"""A job starts its ranks again after a failure, within its allocation, on this machine and on Slurm."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.installed_command import Site, until
from tests.lm_runs import LIMIT, SHAPE, STEPS, lm, saved, weights


def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint_and_nothing_else(site: Site, undisturbed: str) -> None:
    job = lm(site, STEPS, "--max-restarts", "3", "--set", "log_every=1")
    until(lambda: saved(job) >= 10, LIMIT, job.err.read_text)
    os.kill(job.pid(1), signal.SIGKILL)
    state = site.wait_state(job, "COMPLETED", "FAILED", timeout=LIMIT)
    assert state["state"] == "COMPLETED", job.err.read_text()
    assert weights(job) == undisturbed
    assert [attempt.name.partition(".")[2] for attempt in job.attempts()] == ["0.0", "0.1"]
    assert len(state["failed_launches"]) == 1 and "rank 1 ended without a record" in state["failed_launches"][0]
    assert "; restarting the ranks" in job.err.read_text()
    status = site.cli("status", job.id).stdout
    assert "launch  2; the previous launch failed: rank 1" in status and "1 restart cost" in status
    first, second = state["launches"]
    assert len(first["nodes"]) == 2 and first["status"] != 0 == second["status"] and first["lost_s"] > 0
    assert 0 < state["goodput"]["share"] < 1 and state["goodput"]["restarts"] == 1
    again = site.cli("logs", job.id, "--attempt", "0.1").stdout
    assert "resumed from" in again and f"step {STEPS}/{STEPS}" in again and f"step   1/{STEPS}" not in again


@pytest.mark.parametrize("site", ["local"], indirect=True)  # on Slurm: test_resume.py has --resume-args
def test_the_same_error_of_a_script_is_met_once_more_and_then_named(site: Site, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "print('start', os.environ['CLUSTERRUN_RESTART'], sys.argv[1:], os.environ['CLUSTERRUN_CHECKPOINT_DIR'])\n"
        "raise KeyError('target')\n"
    )
    job = site.submit(*SHAPE, "--max-restarts", "5", "--resume-args", "--resume 'a b'", "--", str(script), "--lr", "1")
    site.wait_state(job, "FAILED", timeout=LIMIT)
    assert len(job.attempts()) == 2
    out, checkpoints = job.out.read_text(), job.run_dir / "checkpoints"
    assert f"0: start 0 ['--lr', '1'] {checkpoints}\n" in out
    assert f"0: start 1 ['--lr', '1', '--resume', 'a b'] {checkpoints}\n" in out
    assert "the previous launch failed with the same error at the same step" in job.err.read_text()
    why = site.json("why", job.id)
    assert "train.py:3" in json.dumps(why), why


def test_a_cancel_starts_nothing_again(site: Site) -> None:
    job = site.submit(*SHAPE, "--max-restarts", "5", "--", "sleep", "600")
    site.wait_joined(job, LIMIT)
    site.cli("cancel", job.id, "--yes")
    site.wait_state(job, "CANCELLED")
    assert len(job.attempts()) == 1
