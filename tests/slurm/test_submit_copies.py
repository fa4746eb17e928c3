"""One token in two jobs of a real Slurm: one of them runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.support.installed_command import Site, until
from tests.support.patience import HUNG
from tests.support.submit_tools import NEVER, Fleet, all_over, light

MakeSite = Callable[[Lab | None], Site]


@pytest.fixture
def site(fresh_lab: Lab, new_site: MakeSite) -> Site:
    return new_site(fresh_lab)


def test_of_twenty_tokens_submitted_twice_twenty_run(
    fresh_lab: Lab, site: Site, template: Path, fleets: Callable[..., Fleet]
) -> None:
    lab = fresh_lab
    first, held = (fleets(site, template, {"first": 10}), fleets(site, template, {"held": 10}, "--hold"))
    runs = {one["run_id"]: one for one in first.join(HUNG) + held.join(HUNG)}
    assert len(runs) == 20
    jobs = {}
    for run_id, one in runs.items():
        copy = lab.run(["sbatch", "--parsable", f"{one['run_dir']}/script.sh"], cwd=site.project, env=site.env)
        assert copy.returncode == 0, copy.stderr
        jobs[run_id] = (one["job_id"], copy.stdout.strip())
    # of the held ones the copy has run before the original may
    ran = lambda: list(site.project.glob(".clusterrun/runs/*/ran"))  # noqa: E731
    until(lambda: len(ran()) == 20, 60, lambda: f"{len(ran())} of 20 have run")
    for one in held.results:
        assert lab.run(["scontrol", "release", one["job_id"]]).returncode == 0
    all_over(lab)

    copies_that_ran = 0
    for run_id, pair in jobs.items():
        run_dir = Path(runs[run_id]["run_dir"])
        (winner,) = (run_dir / "ran").read_text().split()
        (loser,) = set(pair) - {winner}
        copies_that_ran += winner == pair[1]
        assert lab.job(winner)["ExitCode"] == "0:0"
        assert lab.job(loser)["ExitCode"] == "75:0"
        (attempt,) = (run_dir / "attempts").iterdir()
        assert json.loads((attempt / "end.json").read_text())["job"] == winner
        logs = site.project / "logs"
        assert (logs / f"train_{winner}.err").read_text() == (logs / f"train_{winner}.out").read_text() == ""
        assert f"job {winner} (restart 0) is already running {run_id}" in (logs / f"train_{loser}.err").read_text()
    assert 10 <= copies_that_ran < 20
    # the record follows the claim: a run is the job that ran, whichever id sbatch gave us
    for state in site.listed("--all"):
        run_dir = Path(runs[state["run_id"]]["run_dir"])
        assert state["job_id"] == (run_dir / "ran").read_text().strip()
        assert (state["state"], state["outcome"]) == ("COMPLETED", "done")

    # started again by Slurm, the owner runs again under its id and the other leaves again
    one = next(iter(jobs))
    run_dir = Path(runs[one]["run_dir"])
    (winner,) = (run_dir / "ran").read_text().split()
    for job in jobs[one]:
        assert lab.run(["scontrol", "requeue", job]).returncode == 0
    until(
        lambda: (run_dir / "ran").read_text().split() == [winner, winner], 60, lambda: "the requeued job's second run"
    )
    all_over(lab)
    assert (run_dir / "ran").read_text().split() == [winner, winner]
    assert site.state(winner)["restarts"] == 1


def test_a_script_run_by_hand_takes_nothing_from_its_job(fresh_lab: Lab, site: Site, template: Path) -> None:
    job = light(site, template, NEVER)
    for force, status in (("", 2), ("1", 0)):
        done = subprocess.run(
            ["bash", str(job.run_dir / "script.sh")], env=site.env | {"CLUSTERRUN_FORCE": force}, cwd=site.project,
            capture_output=True, text=True, timeout=HUNG,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
    assert not list((job.run_dir / "claims").iterdir())
    fresh_lab.run(["scontrol", "update", f"jobid={job.id}", "starttime=now"])
    assert site.wait_state(job, "COMPLETED")["job_id"] == job.id
    assert (job.run_dir / "ran").read_text().split() == [job.id]
