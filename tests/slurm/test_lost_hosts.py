"""A node lost that nothing replaces, the first node lost, a slurmstepd killed: the run goes to its end on its own."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.support.faults_table import Figure
from tests.support.hangs import LATE
from tests.support.installed_command import Job, Site, until
from tests.support.lm_runs import STEPS, lm, saved, slow, weights

SPARED = ("--spare-nodes", "1", "--max-restarts", "3", "--hang-timeout", "10")
TIMES = 5


def started(site: Site, *options: str) -> tuple[Job, list[dict[str, object]]]:
    """Submit a run and wait until it has saved; return its ranks, in order, as they wrote themselves down."""
    job = lm(site, STEPS, *options, *slow())
    until(lambda: saved(job) >= 5, LATE, job.err.read_text)
    start = job.start()
    assert start is not None
    return job, sorted(start["ranks"], key=lambda entry: entry["rank"])


def check_requeued(site: Site, lab: Lab, place: int, undisturbed: str, *options: str) -> None:
    """Cut a node's link: the same job continues without the node, whose old processes write nothing from then on."""
    job, ranks = started(site, *options)
    lost = ranks[place]
    lab.cut_link(str(lost["node"]))
    state = site.wait_state(job, "COMPLETED", "FAILED", "CANCELLED", timeout=2 * LATE)
    assert (state["state"], state["restarts"]) == ("COMPLETED", 1), job.err.read_text()[-3000:]
    nodes = {entry["node"] for entry in (job.start() or {})["ranks"]}
    assert lost["node"] not in nodes
    until(lambda: not Path(f"/proc/{lost['pid']}").exists(), LATE, f"rank {place} on the lost node lives on")
    rows = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows if "loss" in row]
    assert steps == sorted(set(steps)), "the lost node's rank wrote too"
    assert weights(job) == undisturbed
    assert not site.listed()  # no allocation is left


def check_without_stepd(site: Site, undisturbed: str) -> None:
    """Kill the slurmstepd of a rank, not the rank: the run ends done, and its allocation with it."""
    job, ranks = started(site)
    pid = int(str(ranks[1]["pid"]))
    stepd = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert Path(f"/proc/{stepd}/comm").read_text().startswith("slurmstepd")
    os.kill(stepd, signal.SIGKILL)
    state = site.wait_state(job, "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", timeout=2 * LATE)
    assert state["state"] == "COMPLETED", job.err.read_text()[-3000:]
    assert weights(job) == undisturbed
    assert not site.listed()


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("place", "spared"), [(0, False), (1, False), (0, True)])
def test_lost_nodes_requeue_the_job(
    site: Site, lab: Lab, undisturbed: str, place: int, spared: bool, figure: Figure
) -> None:
    for _ in range(TIMES):
        try:
            check_requeued(site, lab, place, undisturbed, *(SPARED if spared else ()))
        finally:
            lab.reset()
    name = "the first node" if place == 0 else "another node"
    figure(4, f"{name}, {'with' if spared else 'without'} a spare one: {TIMES} of {TIMES} continued, bitwise")


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.usefixtures("fresh_lab")
def test_slurmstepds_killed(site: Site, lab: Lab, undisturbed: str, figure: Figure) -> None:
    for _ in range(TIMES):
        check_without_stepd(site, undisturbed)
        lab.reset()
    figure(4, f"slurmstepd killed: {TIMES} of {TIMES} done, bitwise")
