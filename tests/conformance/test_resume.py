"""`resume` continues a run that ended early, by the line that `why` prints, on this machine and on Slurm.

The trainings have one rank: that two ranks save one step is proved where ranks are stopped.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.installed_command import CLUSTERRUN, ONE_RANK, Job, Site
from tests.support.lm_runs import LIMIT, ONE, STEPS, lm, saved, slow, wait_saved, weights


def resumed(site: Site, job: Job) -> Job:
    """Paste the line that `why` prints into a shell in another folder, and return the new job."""
    (why,) = site.json("why", job.id)
    assert why["ended"]["command"] == f"clusterrun resume {job.id}", why
    told = site.cli("why", job.id, cwd=site.home).stdout
    assert f"this command resumes from the checkpoint of step {saved(job)}" in told
    (line,) = [line.strip() for line in told.splitlines() if line.strip().startswith("clusterrun resume")]
    path = f"{Path(CLUSTERRUN[0]).parent}:{site.env['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=site.home, env={**site.env, "PATH": path}, capture_output=True, text=True, timeout=120
    )
    second = re.search(r"Submitted job (L?\d+) ", done.stdout)
    assert done.returncode == 0 and second is not None and second[1] != job.id, done
    state = site.state(second[1])
    assert state["run_dir"] == str(job.run_dir)
    return Job(second[1], job.run_dir, *map(Path, state["logs"]))


def stop(site: Site, job: Job) -> None:
    (job.run_dir / "STOP").touch()


def cancel(site: Site, job: Job) -> None:
    site.cli("cancel", job.id)


# one way on each scheduler: both leave a checkpoint and an end record, from which the run continues
@pytest.mark.parametrize(
    ("site", "interrupt", "state"), [("local", stop, "FAILED"), ("slurm", cancel, "CANCELLED")], indirect=["site"]
)
def test_an_interrupted_run_continues_to_the_same_weights(
    site: Site, undisturbed: str, interrupt: Callable[[Site, Job], None], state: str
) -> None:
    (site.project / "clusterrun.toml").touch(0o644)
    job = lm(site, STEPS, *ONE, *slow())
    wait_saved(job, 10)
    interrupt(site, job)
    site.wait_state(job, state, timeout=LIMIT)
    step = saved(job)
    again = resumed(site, job)
    assert "has not ended" in site.cli("resume", job.id, status=2).stderr
    site.wait_state(again, "COMPLETED", timeout=LIMIT)
    assert weights(job) == undisturbed
    assert f"resumed from {job.run_dir}/checkpoints/step-{step:08} (step {step})" in again.out.read_text()
    assert "nothing left to resume" in site.cli("resume", job.id, status=2).stderr


def test_a_script_gets_its_resume_args(site: Site, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "print('start', os.environ['CLUSTERRUN_RESTART'], sys.argv[1:])\n"
        "sys.exit('--resume' not in sys.argv)\n"
    )
    job = site.submit(*ONE_RANK, "--resume-args=--resume", "--", str(script), "--lr", "1")
    site.wait_state(job, "FAILED", timeout=LIMIT)
    data = site.json("resume", job.id)
    site.wait_state(data["job_id"], "COMPLETED", timeout=LIMIT)
    assert "0: start 1 ['--lr', '1', '--resume']\n" in Path(data["logs"][0]).read_text()
