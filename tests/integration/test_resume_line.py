"""The line that `why` prints for a run that saved a checkpoint, pasted into a shell, continues at its step."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.installed_command import CLUSTERRUN, ONE_RANK, Job, Site, until

QUICK = ("--set", "steps=100000", "--set", "save_every=5", "--set", "eval_every=0")


def saved(job: Job) -> list[int]:
    return sorted(int(path.name[5:]) for path in (job.run_dir / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("ending", ["cancel", "stop"])
def test_the_pasted_line_continues_at_the_saved_step(new_site: Callable[[Lab | None], Site], ending: str) -> None:
    site = new_site(None)
    (site.project / "clusterrun.toml").touch(0o644)
    first = site.submit(*ONE_RANK, *QUICK, "--env", "OMP_NUM_THREADS=1")
    until(lambda: saved(first), 300, lambda: f"a checkpoint: {first.err.read_text()}")
    if ending == "cancel":
        site.cli("cancel", first.id)
    else:
        (first.run_dir / "STOP").touch()
    site.cli("wait", first.id, status=1)
    step = saved(first)[-1]

    told = site.cli("why", first.id, cwd=site.home).stdout
    assert f"this command resumes from the checkpoint of step {step}" in told
    (line,) = [line.strip() for line in told.splitlines() if line.strip().startswith("clusterrun resume")]
    path = f"{Path(CLUSTERRUN[0]).parent}:{site.env['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=site.home, env={**site.env, "PATH": path}, capture_output=True, text=True, timeout=120
    )
    second = re.search(r"Submitted job (L\d+) ", done.stdout)
    assert done.returncode == 0 and second is not None, done
    log = site.project / "logs" / f"train_{second[1]}.out"
    until(lambda: log.exists() and "resumed from" in log.read_text(), 300)
    site.cli("cancel", second[1])
    assert f"resumed from {first.run_dir}/checkpoints/step-{step:08} (step {step})" in log.read_text()
