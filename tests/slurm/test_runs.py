"""A run of four ranks on two nodes, from submit to its end, as its user sees it; with accounting and without.

That ranks compute together: test_rendezvous.py.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lab.cluster import Lab
from tests.support.installed_command import SCRIPTS, Job, Site
from tests.support.rank_files import ends_of

START = re.compile(r"^(\d+): start (\d+) (\d+)$", re.MULTILINE)  # of tells_its_start.py


@dataclass(frozen=True)
class Run:
    """A job that was followed from its submission on; `shown` is what `logs -f` printed, `status` how it exited."""

    lab: Lab
    site: Site
    job: Job
    shown: str
    status: int


@pytest.fixture(scope="module")
def runs(lab: Lab, lab_no_accounting: Lab, new_site: Callable[[Lab | None], Site]) -> dict[str, Run]:
    """The same run on both labs, side by side."""
    following: list[tuple[Lab, Site, Job, subprocess.Popen[str]]] = []
    for one in (lab, lab_no_accounting):
        site = new_site(one)
        job = site.submit(
            "--nodes", "2", "--gpus-per-node", "2", "--", str(SCRIPTS / "says_rank.sh"), "--lr", "1e-4", "--help"
        )
        following.append((one, site, job, site.start("logs", job.id, "-f")))
    done = []
    for one, site, job, process in following:
        shown, _ = process.communicate(timeout=240)
        done.append(Run(one, site, job, shown, process.returncode))
    return dict(zip(("accounting", "no-accounting"), done, strict=True))


@pytest.fixture(params=["accounting", "no-accounting"])
def run(runs: dict[str, Run], request: pytest.FixtureRequest) -> Run:
    return runs[request.param]


def test_following_exits_with_the_outcome(run: Run) -> None:
    assert run.status == 0, run.shown


def test_following_shows_every_rank_to_its_end(run: Run) -> None:
    for rank in range(4):
        assert f"{rank}: rank {rank} of 4: args --lr 1e-4 --help\n" in run.shown


def test_table_names_two_nodes_and_four_ranks(run: Run) -> None:
    rows = re.findall(r"^0: +(\d+)  (\S+) +\S", run.shown, re.MULTILINE)
    first, second = run.lab.node_names[:2]
    assert rows == [(str(rank), first if rank < 2 else second) for rank in range(4)]
    assert "Number of processes: 4\n" in run.shown


def test_both_logs_are_there_under_the_jobs_id(run: Run) -> None:
    logs = run.site.project / "logs"
    assert sorted(path.name for path in logs.iterdir()) == [f"train_{run.job.id}.err", f"train_{run.job.id}.out"]


def test_status_is_completed_on_two_nodes(run: Run) -> None:
    state = run.site.state(run.job)
    assert (state["state"], state["outcome"], state["node_count"]) == ("COMPLETED", "done", 2)
    assert state["cluster"] == run.lab.cluster_name


def test_logs_of_one_rank_are_that_ranks_alone(run: Run) -> None:
    lines = run.site.json("logs", run.job.id, "--rank", "3", "--stream", "out")
    assert [line["rank"] for line in lines] == [3]
    assert lines[0]["text"].startswith("rank 3 of 4")


def test_logs_of_one_node_are_of_its_ranks(run: Run) -> None:
    lines = run.site.json("logs", run.job.id, "--node", run.lab.node_names[1], "--stream", "out")
    assert {line["rank"] for line in lines} == {2, 3}


def test_every_rank_left_its_end_marker(run: Run) -> None:
    (folder,) = run.job.attempts()
    assert {end["rank"] for end in ends_of(folder).values()} == set(range(4))
    assert len([*folder.glob("node-*.ranks")]) == 2, "a file for each node"


def test_gpus_were_asked_of_slurm_for_each_node(run: Run) -> None:
    script = (run.job.run_dir / "script.sh").read_text()
    assert "#SBATCH --gpus-per-node=2\n" in script and "#SBATCH --nodes=2\n" in script


@pytest.mark.faults
def test_default_job_trains_on_eight_ranks(lab: Lab, new_site: Callable[[Lab | None], Site]) -> None:
    site = new_site(lab)
    job = site.submit("--nodes", "2", "--gpus-per-node", "4")
    site.cli("wait", job.id, timeout=280)
    assert site.state(job)["state"] == "COMPLETED"
    assert "loss" in job.out.read_text()


def test_with_local_main_process_first_the_ranks_of_a_node_start_the_script_in_turn(site: Site) -> None:
    job = site.submit(
        "--local-main-process-first", "--nodes", "2", "--gpus-per-node", "2", "--", str(SCRIPTS / "tells_its_start.py")
    )
    site.cli("wait", job.id)
    log = job.out.read_text()
    starts = {int(rank): (int(began), int(joins)) for rank, began, joins in START.findall(log)}
    for first, other in ((0, 1), (2, 3)):
        assert starts[other][0] >= starts[first][1], "when the first joined, the other began"
    assert "the other ranks waited" in job.err.read_text()
