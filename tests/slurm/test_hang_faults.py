"""Ten ranks of one run stopped at random moments, of a task and of a script: a launch each, and no bit of the task."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import pytest

from tests.faults_table import Figure
from tests.hangs import (
    LATE,
    LIMIT,
    RANKS,
    SHAPE,
    WATCHED,
    Ended,
    collectives,
    stop_and_await,
    submit_script,
)
from tests.installed_command import Job, Site, until
from tests.lm_runs import saved, weights

STOPS = 10
REACTION_S = 5.0  # from the limit to the next launch
SETTINGS = (
    "steps=300",
    "eval_every=0",
    "save_every=5",
    "log_every=5",
    "vocab=300",
    "seq_len=16",
    "global_batch_size=4",
)
LM = [word for setting in SETTINGS for word in ("--set", setting)]


def stop_ten_times(job: Job, is_working: Callable[[], bool], figure: Figure) -> list[Ended]:
    """Stop a random rank of each launch once it works."""
    chance, found = random.Random(11), []
    for stop in range(STOPS):
        until(lambda launches=stop + 1: len(job.attempts()) == launches, LATE, job.err.read_text)
        until(is_working, LATE, job.err.read_text)
        time.sleep(chance.uniform(0, 1.0))  # at any moment of a step
        found.append(stop_and_await(job, chance.randrange(RANKS)))
    after = [ended.after for ended in found]
    figure(2, f"{len(found)} of {STOPS} named, with the stacks of all others; to the next launch: median"
              f" {statistics.median(after):.1f} s, longest {max(after):.1f} s")  # fmt: skip
    assert max(after) <= LIMIT + REACTION_S, after
    return found


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_ten_stopped_ranks_of_a_task_cost_ten_launches_and_no_bit(site: Site, figure: Figure) -> None:
    undisturbed = site.submit(*SHAPE, *LM, "lm")
    site.wait_state(undisturbed, "COMPLETED", timeout=LATE)
    job = site.submit(*SHAPE, *WATCHED, *LM, "lm")
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
    assert weights(job) == weights(undisturbed) and len(state["failed_launches"]) == STOPS


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_ten_stopped_ranks_of_a_script_are_named_and_cost_ten_launches(site: Site, figure: Figure) -> None:
    job, end = submit_script(site, *WATCHED)
    stop_ten_times(job, lambda: collectives(job.attempts()[-1]) > 10, figure)
    end.write_text("")
    state = site.wait_state(job, "COMPLETED", "FAILED", timeout=LATE)
    assert state["state"] == "COMPLETED", job.err.read_text()[-3000:]
    assert len(state["failed_launches"]) == STOPS
