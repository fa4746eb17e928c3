"""A launch that hangs is ended, its cause is named, and the next launch continues: on this machine and on Slurm."""

from __future__ import annotations

import json

from tests.hangs import LATE, LIMIT, WATCHED, collectives, stop_and_await, stop_rank, submit_script
from tests.installed_command import Site, until
from tests.lm_runs import STEPS, lm, saved, weights


def test_a_stopped_rank_of_a_task_costs_the_steps_since_the_last_checkpoint(site: Site, undisturbed: str) -> None:
    job = lm(site, STEPS, *WATCHED)
    until(lambda: saved(job) >= 10, LATE, job.err.read_text)
    ended = stop_and_await(job, 1)
    state = site.wait_state(job, "COMPLETED", "FAILED", timeout=LATE)
    assert state["state"] == "COMPLETED", job.err.read_text()
    assert weights(job) == undisturbed
    assert "rank 1 on" in state["failed_launches"][0] and ended.after > LIMIT / 2
    assert "stopped (SIGSTOP)" in site.cli("status", job.id).stdout


def test_a_stopped_rank_of_a_script_is_named_and_its_launch_is_ended(site: Site) -> None:
    job, _ = submit_script(site, "--hang-timeout", str(LIMIT))
    until(lambda: job.attempts() and collectives(job.attempts()[-1]) > 20, LATE, job.err.read_text)
    attempt, _ = stop_rank(job, 1)
    state = site.wait_state(job, "FAILED", timeout=LATE)
    assert state["exit_status"] == 124
    (answer,) = site.json("why", job.id)
    why = answer["ended"]
    assert (why["kind"], why["rank"]) == ("hang", 1) and "stopped (SIGSTOP)" in why["cause"], why
    assert f"{attempt}/stacks-rank-" in why["advice"]
    assert json.loads((attempt / "hang.json").read_text())["rank"] == 1
