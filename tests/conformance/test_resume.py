"""`resume` continues a run that ended early, by the line that `why` prints, on this machine and on Slurm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.installed_command import Job, Site
from tests.lm_runs import LIMIT, SHAPE, STEPS, lm, wait_saved, weights


def resumed(site: Site, job: Job) -> Job:
    """Type the line that `why` prints, and return the new job."""
    (why,) = site.json("why", job.id)
    line = why["ended"]["command"]
    assert line == f"clusterrun resume {job.id}", why
    data = site.json(*line.split()[1:])
    assert data["run_dir"] == str(job.run_dir) and data["job_id"] != job.id
    return Job(data["job_id"], job.run_dir, *map(Path, data["logs"]))


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
    job = lm(site, STEPS)
    wait_saved(job, 10)
    interrupt(site, job)
    site.wait_state(job, state, timeout=LIMIT)
    again = resumed(site, job)
    assert "has not ended" in site.cli("resume", job.id, status=2).stderr
    site.wait_state(again, "COMPLETED", timeout=LIMIT)
    assert weights(job) == undisturbed
    assert "(step " in again.out.read_text(), "it loaded a checkpoint"
    assert "nothing left to resume" in site.cli("resume", job.id, status=2).stderr


def test_a_script_gets_its_resume_args(site: Site, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "print('start', os.environ['CLUSTERRUN_RESTART'], sys.argv[1:])\n"
        "sys.exit('--resume' not in sys.argv)\n"
    )
    job = site.submit(*SHAPE, "--resume-args=--resume", "--", str(script), "--lr", "1")
    site.wait_state(job, "FAILED", timeout=LIMIT)
    data = site.json("resume", job.id)
    site.wait_state(data["job_id"], "COMPLETED", timeout=LIMIT)
    assert "0: start 1 ['--lr', '1', '--resume']\n" in Path(data["logs"][0]).read_text()
