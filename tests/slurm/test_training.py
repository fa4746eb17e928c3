"""Training on real Slurm: a requeued job goes on from its checkpoint, and ranks know when their time is up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

import pytest

from lab.cluster import Lab
from lab.fixtures import require_lab
from tests.support.installed_command import Job, Site, read_json, until
from tests.support.lm_runs import ONE, STAND_IN, lm, reached, slow, wait_saved
from tests.support.patience import HUNG

QUICK = ("vocab=300", "seq_len=16", "global_batch_size=8", "eval_every=0", "log_every=5")


@pytest.fixture(scope="module")
def patient_lab() -> Iterator[Lab]:
    """A lab that gives a job Slurm's default time to save and to leave: five seconds are too few under load."""
    require_lab()
    with Lab(name=f"t{os.getpid()}w", nodes=1, accounting=False, settings={"KillWait": "30"}) as lab:
        yield lab


@pytest.fixture(scope="module")
def site(patient_lab: Lab, new_site: Callable[[Lab | None], Site]) -> Site:
    return new_site(patient_lab)


def train(site: Site, *settings: str) -> Job:
    chosen = [word for setting in (*QUICK, *settings) for word in ("--set", setting)]
    return site.submit("--nodes", "1", "--gpus-per-node", "1", *chosen, *STAND_IN, *slow(), "lm")


def test_a_requeued_job_saves_first_and_goes_on_from_there(patient_lab: Lab, site: Site) -> None:
    job = train(site, "steps=300")
    until(lambda: reached(job) >= 5, 120, lambda: f"{job} does not train")
    assert patient_lab.run(["scontrol", "requeue", job.id]).returncode == 0
    until(lambda: len(job.attempts()) == 2, 120, lambda: f"{job} does not start again")
    stopped = json.loads((job.attempts()[0] / "stopped").read_text())
    assert stopped["reason"] == "SIGTERM"
    assert 5 <= stopped["step"] < 300
    end = read_json(job.attempts()[0] / "end.json")
    assert end is not None and (end["status"], end["due"]) == (85, "JOB REQUEUE")
    site.wait_state(job, "COMPLETED", timeout=180)
    assert f"/checkpoints/step-{stopped['step']:08d} (step {stopped['step']})" in job.out.read_text()
    assert reached(job) == 300
    assert (job.run_dir / "model" / "config.json").exists()


def test_a_cancelled_run_stays_cancelled(site: Site) -> None:
    job = lm(site, 5000, *ONE, *slow(), "--total-time", "1h")
    wait_saved(job, 5)
    site.cli("cancel", job.id)
    site.wait_state(job, "CANCELLED", timeout=HUNG)
    assert len(job.attempts()) == 1 and "the job was requeued" not in job.err.read_text()


def test_a_rank_is_told_when_the_time_limit_ends_its_job(patient_lab: Lab, site: Site) -> None:
    job = site.rank("environ.sh", "--time", "7")
    site.wait_end(job)
    shown = patient_lab.run(["scontrol", "show", "job", "-o", job.id]).stdout
    told = next(line for line in job.out.read_text().splitlines() if "CLUSTERRUN_END_TIME=" in line)
    limit = patient_lab.run(["date", "-d", shown.split(" StartTime=")[1].split()[0], "+%s"]).stdout
    assert int(told.rpartition("=")[2]) - int(limit) == 7 * 60
