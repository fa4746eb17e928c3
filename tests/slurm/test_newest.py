"""What only Slurm of the last two years has: segments of `topology/block`, and expedited requeues (25.11)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import pytest

from lab import releases
from lab.cluster import Lab
from tests.slurm.test_lost_nodes import nodes_of
from tests.support.hangs import LATE
from tests.support.installed_command import SCRIPTS, Site
from tests.support.lm_runs import STEPS, lm, saved, slow
from tests.support.patience import until

pytestmark = [pytest.mark.faults, pytest.mark.versions]
NEW = {
    "TopologyPlugin": "topology/block",  # two blocks, the odd nodes and the even ones
    "Epilog": "/bin/true",
    "SlurmctldParameters": "enable_expedited_requeue",
}
SEGMENTS = ("--gpus-per-node", "2", "--sbatch-arg=--segment=2")


@pytest.fixture(scope="module")
def newest() -> Iterator[Lab]:
    if releases.default() != "26.05":
        pytest.skip("this Slurm has no segments or no expedited requeue")
    with Lab(name=f"t{os.getpid()}w", accounting=False, settings=NEW) as lab:
        yield lab


@pytest.fixture(scope="module")
def site(newest: Lab, new_site: Callable[[Lab | None], Site]) -> Site:
    return new_site(newest)


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_ranks_of_a_segment_are_neighbours(newest: Lab, site: Site, launcher: str) -> None:
    job = site.submit("--nodes", "4", *SEGMENTS, "--launcher", launcher, "--", str(SCRIPTS / "says_node.py"))
    assert site.wait_state(job, "COMPLETED", "FAILED")["state"] == "COMPLETED", job.err.read_text()
    ranks = re.findall(r"^\d: rank (\d) of node (\d) on \S+-node(\d)$", job.out.read_text(), re.MULTILINE)
    placed = {int(rank): (int(number), int(node)) for rank, number, node in ranks}
    assert [placed[rank] for rank in range(8)] == [(0, 1), (0, 1), (1, 3), (1, 3), (2, 2), (2, 2), (3, 4), (3, 4)]


def test_a_node_that_a_segment_loses_is_replaced(newest: Lab, site: Site) -> None:
    spares = ("--spare-nodes", "2", "--max-restarts", "1", "--hang-timeout", "10", "--sbatch-arg=--segment=2")
    job = lm(site, STEPS, *spares, *slow())
    until(lambda: saved(job) >= 5, LATE, job.err.read_text)
    first, lost = nodes_of(job, 0)
    assert [first, lost] == [newest.node_names[0], newest.node_names[2]]
    newest.cut_link(lost)
    try:
        assert site.wait_state(job, "COMPLETED", "FAILED", timeout=LATE)["state"] == "COMPLETED", job.err.read_text()
        again = nodes_of(job, 1)
        assert again[0] == first and len(again) == 2 and lost not in again
    finally:
        newest.restore_link(lost)


def test_an_expedited_requeue_is_refused_as_slurm_holds_a_job_whose_program_fails(newest: Lab, site: Site) -> None:
    refused = site.cli("submit", "--sbatch-arg=--requeue=expedite", "--", "true", status=2)
    assert "'--requeue=expedite' is not supported" in refused.stderr
    job = newest.run(["sbatch", "--parsable", "-o/dev/null", "--requeue=expedite", "--wrap", "exit 3"]).stdout.strip()
    state = ["squeue", "-h", "--states=all", "-j", job, "-o%T"]
    until(lambda: newest.run(state).stdout.strip() == "REQUEUE_HOLD", 60)
    newest.run(["scancel", job])


def test_gpus_by_two_options_are_refused_by_us_as_by_slurm(newest: Lab, site: Site) -> None:
    both = ("--gres=gpu:1", "--gpus-per-node=1")
    assert "mutually exclusive" in newest.run(["sbatch", *both, "--wrap", "true"]).stderr
    assert "both request GPUs" in site.cli("submit", *both, "--", "true", status=2).stderr
