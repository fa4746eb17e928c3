"""Ten ranks of one run stopped at random moments, of a task and of a script: a launch each, and no bit of the task."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import pytest

from tests.support.faults_table import Figure
from tests.support.hangs import (
    LATE,
    LIMIT,
    WATCHED,
    Ended,
    collectives,
    stop_and_await,
    submit_script,
)
from tests.support.installed_command import Job, Site, until
from tests.support.lm_runs import final_weights, lm, saved, weights

STOPS = 10
REACTION_S = 5.0  # from the limit to the next launch
STEPS = 300
FOUR = ("--tasks-per-node", "2")


def stop_ten_times(job: Job, is_working: Callable[[], bool], figure: Figure) -> list[Ended]:
    """Stop a random rank of each launch once it works."""
    chance, found = random.Random(11), []
    for stop in range(STOPS):
        until(lambda launches=stop + 1: len(job.attempts()) == launches, LATE, job.err.read_text)
        until(is_working, LATE, job.err.read_text)
        time.sleep(chance.uniform(0, 1.0))  # at any moment of a step
        found.append(stop_and_await(job, chance.randrange(4)))
    after = [ended.after for ended in found]
    figure(2, f"{len(found)} of {STOPS} named, with the stacks of all others; to the next launch: median"
              f" {statistics.median(after):.1f} s, longest {max(after):.1f} s")  # fmt: skip
    assert max(after) <= LIMIT + REACTION_S, after
    return found


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_ten_stopped_ranks_of_a_task_cost_ten_launches_and_no_bit(site: Site, figure: Figure) -> None:
    undisturbed = final_weights(site, lm(site, STEPS, *FOUR))
    job = lm(site, STEPS, *FOUR, *WATCHED)
    last = 0

    def is_working() -> bool:
        nonlocal last
        if saved(job) <= last or not (job.attempts()[-1] / "start.json").exists():
            return False
        last = saved(job)
        return True

    stop_ten_times(job, is_working, figure)
    state = site.wait_state(job, "COMPLETED", "FAILED", timeout=LATE)
    assert state["state"] == "COMPLETED", job.err.read_text()[-3000:]
    assert weights(job) == undisturbed and len(state["failed_launches"]) == STOPS


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_ten_stopped_ranks_of_a_script_are_named_and_cost_ten_launches(site: Site, figure: Figure) -> None:
    job, end = submit_script(site, *FOUR, *WATCHED)
    stop_ten_times(job, lambda: collectives(job.attempts()[-1]) > 10, figure)
    end.write_text("")
    state = site.wait_state(job, "COMPLETED", "FAILED", timeout=LATE)
    assert state["state"] == "COMPLETED", job.err.read_text()[-3000:]
    assert len(state["failed_launches"]) == STOPS
