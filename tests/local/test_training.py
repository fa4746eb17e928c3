"""Training on the local scheduler: stopped before its time limit, told as stopped, and gone on with by another job.

That a cancelled one saves first: conformance/test_launchers.py and, resumed, conformance/test_resume.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

from tests.support.installed_command import Job, Site, until
from tests.support.lm_runs import STAND_IN, reached

QUICK = ("vocab=300", "seq_len=16", "global_batch_size=8", "eval_every=0", "log_every=5")


def train(site: Site, *options: str, settings: tuple[str, ...]) -> Job:
    chosen = [word for setting in (*QUICK, *settings) for word in ("--set", setting)]
    return site.submit("--nodes", "1", "--tasks-per-node", "2", *options, *chosen, *STAND_IN, "lm")


def rest_until(moment: float, job: Job) -> None:
    """Stop the ranks once they train, until that moment: they would compute for nothing."""
    until(lambda: reached(job) >= 5 or job.end(), 240, job.err.read_text)
    if job.end():
        return
    ranks = [job.pid(rank) for rank in range(2)]
    with contextlib.suppress(ProcessLookupError):  # ended by now: there is nothing to wait for
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(max(0.0, moment - time.time()))
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)


def test_a_run_stops_before_its_time_limit_and_another_goes_on_from_its_checkpoint(site: Site, tmp_path: Path) -> None:
    kept = f"checkpoint_dir={tmp_path}"
    for trains in (15, 60, 240):  # seconds until the margin begins: on a slow machine the first may end before step 1
        limit = ("--time", "20:00", "--set", f"time_margin={1200 - trains}")
        job = train(site, *limit, settings=("steps=1000000", kept))
        rest_until(time.time() + trains, job)
        done = site.cli("wait", job.id, status=1, timeout=200)
        assert "stopped" in done.stdout + done.stderr
        state = site.state(job)
        assert (state["outcome"], state["exit_status"]) == ("stopped", 85)
        stopped = json.loads((job.attempts()[0] / "stopped").read_text())
        if stopped["step"]:
            break
    assert stopped["reason"] == "the time limit"
    assert not (job.run_dir / "model").exists(), "a model that is not finished must not look like one"
    goes_on = train(site, settings=(f"steps={stopped['step'] + 5}", kept))
    site.wait_state(goes_on, "COMPLETED", timeout=120)
    assert f"(step {stopped['step']})" in goes_on.out.read_text()
    assert reached(goes_on) == stopped["step"] + 5
