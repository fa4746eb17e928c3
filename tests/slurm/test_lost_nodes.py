"""A node that is lost is named and replaced by a spare one, in the same allocation, and costs no bit."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from clusterrun.worker.node.probe import descendants
from lab.cluster import Lab
from lab.procs import kill_pids, start_time
from tests.support.faults_table import Figure
from tests.support.hangs import LATE, start_now
from tests.support.installed_command import SCRIPTS, Job, Site, until
from tests.support.lm_runs import STEPS, final_weights, lm, saved, slow, weights

SPARED = ("--spare-nodes", "1", "--max-restarts", "3", "--hang-timeout", "10")
THREE = ("--nodes", "3", "--set", "global_batch_size=6")
TIMES = 10


def nodes_of(job: Job, launch: int) -> list[str]:
    start = until(lambda: job.attempts()[launch:] and job.start(), LATE, job.err.read_text)
    return list(dict.fromkeys(entry["node"] for entry in start["ranks"]))


def cut(lab: Lab, job: Job, node: str) -> None:
    lab.cut_link(node)


def kill(lab: Lab, job: Job, node: str) -> None:
    """The node's slurmd and the job's processes on it die at once, as far as signals can do that."""
    daemon, start = lab.daemon(node), job.start()
    assert daemon.pid is not None and start is not None
    kill_pids([daemon.pid, *(entry["pid"] for entry in start["ranks"] if entry["node"] == node)])


def lose_a_node(
    site: Site, lab: Lab, lose: Callable[[Lab, Job, str], None], expected: str, place: int, *options: str
) -> None:
    job = lm(site, STEPS, *options, *SPARED, *slow())
    until(lambda: saved(job) >= 5, LATE, job.err.read_text)
    node = nodes_of(job, 0)[place]
    lose(lab, job, node)
    state = site.wait_state(job, "COMPLETED", "FAILED", "NODE_FAIL", timeout=LATE)
    log = job.err.read_text()
    assert state["state"] == "COMPLETED", log[-3000:]
    assert weights(job) == expected
    assert len(state["failed_launches"]) == 1 and state.get("restarts", 0) == 0, state
    assert f"{node} is not responding" in log or f"not used in the next launch (not responding): {node}" in log
    assert node not in nodes_of(job, 1) and len(nodes_of(job, 1)) == len(nodes_of(job, 0))


@pytest.mark.usefixtures("fresh_lab")
def test_a_node_whose_link_is_cut_is_replaced_by_the_spare_one(site: Site, lab: Lab, undisturbed: str) -> None:
    lose_a_node(site, lab, cut, undisturbed, 1)


@pytest.mark.usefixtures("fresh_lab")
def test_without_a_spare_one_the_job_is_requeued_on_other_nodes(site: Site, lab: Lab, undisturbed: str) -> None:
    job = lm(site, STEPS, *slow())
    until(lambda: saved(job) >= 5, LATE, job.err.read_text)
    node = nodes_of(job, 0)[1]
    cut(lab, job, node)
    state = site.wait_state(job, "COMPLETED", "FAILED", "NODE_FAIL", timeout=LATE)
    assert state["state"] == "COMPLETED" and state["restarts"] == 1, job.err.read_text()[-3000:]
    assert weights(job) == undisturbed and node not in nodes_of(job, 1)


@pytest.mark.usefixtures("fresh_lab")
def test_a_draining_node_is_left_out_at_the_next_launch(site: Site, lab: Lab) -> None:
    shape = ("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "1", "--spare-nodes", "1")
    job = site.submit(*shape, "--max-restarts", "1", "--", str(SCRIPTS / "sleeps.sh"))
    first, second = nodes_of(job, 0)
    drained = lab.run(["scontrol", "update", f"NodeName={second}", "State=DRAIN", "Reason=test"])
    assert drained.returncode == 0, drained.stderr
    (pid,) = [entry["pid"] for entry in job.start()["ranks"] if entry["node"] == first]
    kill_pids([pid])
    used = nodes_of(job, 1)
    assert used[0] == first and len(used) == 2 and second not in used
    assert f"not used in the next launch (drained or down): {second}" in job.err.read_text()
    site.cli("cancel", job.id)
    lab.run(["scontrol", "update", f"NodeName={second}", "State=RESUME"])


@pytest.mark.usefixtures("fresh_lab")
def test_the_processes_of_a_script_on_a_node_that_was_cut_off_end_with_the_next_start(site: Site, lab: Lab) -> None:
    job = site.rank("sleeps_the_first_time.sh", "--requeue")
    (node,) = nodes_of(job, 0)
    rank = job.start()["ranks"][0]["pid"]
    (program,) = until(lambda: descendants(rank), LATE)
    cut(lab, job, node)
    lab.wait_job(job.id, "PENDING", timeout=LATE)
    assert start_time(rank) and start_time(program), "no newer attempt has begun yet"
    start_now(lab, job)
    until(lambda: len(job.attempts()) == 2, LATE, job.err.read_text)
    until(lambda: start_time(rank) is start_time(program) is None, 60)


@pytest.mark.faults
@pytest.mark.timeout(2400)
def test_ten_lost_nodes_are_replaced(site: Site, lab: Lab, figure: Figure) -> None:
    chance, expected = random.Random(3), final_weights(site, lm(site, STEPS, *THREE))
    for number in range(TIMES):
        try:
            lose_a_node(site, lab, (cut, kill)[number % 2], expected, chance.choice([1, 2]), *THREE)
        finally:
            lab.reset()
    figure(3, f"{TIMES} of {TIMES} replaced in the same allocation, bitwise")
