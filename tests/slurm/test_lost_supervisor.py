"""The supervisor killed, or the controller away for a while: the run is not lost, and its records are true.

The trainings have one rank: the supervisor and the controller are one as well.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.faults_table import Figure
from tests.support.installed_command import Job, Site, until
from tests.support.lm_runs import LIMIT, ONE, STEPS, lm, slow, wait_saved, weights

TIMES = 5


def supervisors(job: Job) -> list[int]:
    """The process that supervises a job, by the run's folder in its environment and the verb in its command."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            environ = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"supervise" in words and f"CLUSTERRUN_RUN_DIR={job.run_dir}".encode() in environ:
            found.append(int(folder.name))
    return found


def check_killed(site: Site, undisturbed: str) -> None:
    job = lm(site, STEPS, *ONE, *slow())
    wait_saved(job, 10)
    (pid,) = supervisors(job)
    os.kill(pid, signal.SIGKILL)
    state = site.wait_state(job, "FAILED", timeout=LIMIT)
    assert state["outcome"] == "failed" and state["exit_status"] not in (0, 85)
    (why,) = site.json("why", job.id)
    assert f"clusterrun resume {job.id}" in (why["ended"]["command"], *why["ended"]["advice"].split("`")), why
    again = site.json("resume", job.id)
    site.wait_state(again["job_id"], "COMPLETED", timeout=LIMIT)
    assert weights(job) == undisturbed


def check_controller_away(site: Site, undisturbed: str, seconds: float) -> None:
    assert site.lab is not None
    job, controller = lm(site, STEPS, *ONE, *slow(seconds=seconds / STEPS)), site.lab.daemon("slurmctld")
    wait_saved(job, 10)
    until_back = time.monotonic() + seconds
    controller.terminate()
    try:
        until(lambda: time.monotonic() >= until_back, seconds + 5, pause=0.5)  # the fault's own length
    finally:
        controller.start()
    state = site.wait_state(job, "COMPLETED", "FAILED", timeout=LIMIT)
    assert (state["state"], state["outcome"], state["restarts"]) == ("COMPLETED", "done", 0), job.err.read_text()
    assert weights(job) == undisturbed


def test_a_run_whose_supervisor_is_killed_is_resumed(site: Site, undisturbed: str) -> None:
    check_killed(site, undisturbed)


def test_a_controller_that_is_away_costs_nothing(site: Site, undisturbed: str) -> None:
    check_controller_away(site, undisturbed, 5)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_supervisors_killed(site: Site, undisturbed: str, figure: Figure) -> None:
    for _ in range(TIMES):
        check_killed(site, undisturbed)
    figure(10, f"supervisor killed: {TIMES} of {TIMES} resumed to the same weights")


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_a_controller_away_for_a_minute(site: Site, undisturbed: str, figure: Figure) -> None:
    for _ in range(TIMES):
        check_controller_away(site, undisturbed, 60)
    figure(10, f"slurmctld away for 60 s: {TIMES} of {TIMES} done, with the same weights")
