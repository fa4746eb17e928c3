"""Killed ranks cost a launch each and no bit of the weights; an exception that comes again ends a run."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from pathlib import Path

import pytest

from tests.support.faults_table import Figure
from tests.support.installed_command import Site, read_json, until
from tests.support.lm_runs import saved, weights

SHAPE = ("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "2")
SETTINGS = (
    "steps=400",
    "eval_every=0",
    "save_every=5",
    "log_every=5",
    "vocab=300",
    "seq_len=16",
    "global_batch_size=4",
)
QUICK = [word for setting in SETTINGS for word in ("--set", setting)]
KILLS, LIMIT = 20, 300
SAME_ERRORS = 5
RAISES = """
import clusterrun
for step in range(1, 20):
    clusterrun.heartbeat(step)
    if step == 7:
        raise KeyError("target")
"""


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_twenty_killed_ranks_cost_twenty_launches_and_no_bit(site: Site, figure: Figure) -> None:
    undisturbed = site.submit(*SHAPE, *QUICK, "lm")
    site.wait_state(undisturbed, "COMPLETED", timeout=LIMIT)
    job = site.submit(*SHAPE, "--max-restarts", str(KILLS), *QUICK, "lm")
    chance, delays = random.Random(7), []
    for kill in range(KILLS):
        before = saved(job)
        until(lambda launches=kill + 1: len(job.attempts()) == launches, LIMIT, job.err.read_text)
        until(lambda step=before: saved(job) > step, LIMIT, job.err.read_text)
        time.sleep(chance.uniform(0, 0.5))  # at any moment between two checkpoints
        start = read_json(job.attempts()[-1] / "start.json")
        assert start is not None
        os.kill(chance.choice(start["ranks"])["pid"], signal.SIGKILL)
        killed = time.monotonic()
        until(lambda launches=kill + 2: len(job.attempts()) == launches, LIMIT, job.err.read_text, pause=0.01)
        delays.append(time.monotonic() - killed)
    state = site.wait_state(job, "COMPLETED", "FAILED", timeout=LIMIT)
    assert state["state"] == "COMPLETED", job.err.read_text()[-3000:]
    assert weights(job) == weights(undisturbed) and len(state["failed_launches"]) == KILLS
    figure(1, f"{KILLS} of {KILLS} restarted, bitwise; to the next launch: median {statistics.median(delays):.2f} s,"
              f" longest {max(delays):.2f} s")  # fmt: skip


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_an_exception_that_comes_again_costs_one_restart(site: Site, tmp_path: Path, figure: Figure) -> None:
    script = tmp_path / "train.py"
    script.write_text(RAISES)
    for _ in range(SAME_ERRORS):
        job = site.submit(*SHAPE, "--max-restarts", "9", "--", str(script))
        site.wait_state(job, "FAILED", timeout=LIMIT)
        assert len(job.attempts()) == 2
        assert "the previous launch failed with the same error at the same step" in job.err.read_text()
        assert "train.py:6" in json.dumps(site.json("why", job.id))
    figure(7, f"{SAME_ERRORS} of {SAME_ERRORS}: one restart, then stopped with file and line")
