"""Many windows of one user on real Slurm: together they ask slurmctld as often as one would, and miss no end."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterrun.scheduler.slurm.cache import FRESH
from lab.cluster import Lab
from tests.support.installed_command import CLUSTERRUN, Job, Site, until
from tests.support.patience import HUNG
from tests.support.submit_tools import light

HOLD = "--sbatch-arg=--hold"
WINDOWS = 5


def questions(lab: Lab) -> int:
    """How often slurmctld has been asked for all jobs, as it counts itself."""
    found = re.search(r"^\s+REQUEST_JOB_INFO\s+\(.*?count:(\d+)", lab.run(["sdiag"]).stdout, re.MULTILINE)
    return int(found[1]) if found else 0


class Follower:
    """`logs -f` of a job, both streams in a file."""

    def __init__(self, site: Site, job: Job, number: int) -> None:
        self._said = site.home / f"window-{number}"
        with self._said.open("wb") as file:
            self.process = subprocess.Popen(
                [*CLUSTERRUN, "logs", job.id, "-f"], cwd=site.project, env=site.env,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._said.read_text()


def test_windows_ask_together_and_each_sees_the_end(
    lab: Lab, new_site: Callable[[Lab | None], Site], template: Any
) -> None:
    site = new_site(lab)
    job = light(site, template, HOLD)
    _age(job.run_dir)  # what was heard just after a submission is not shared
    before, began = questions(lab), time.monotonic()
    windows = [Follower(site, job, number) for number in range(WINDOWS)]
    until(lambda: all("PENDING" in one.said for one in windows), 60, lambda: str([one.said for one in windows]))
    asked = questions(lab) - before
    opened = time.monotonic() - began
    assert asked <= 1 + opened // FRESH, "one window asked Slurm and told the others"
    first = questions(lab)
    until(lambda: questions(lab) - first >= 1, 120)
    assert time.monotonic() - began >= FRESH, "a question in ten seconds, whatever the number of windows"
    lab.run(["scontrol", "release", job.id])
    for one in windows:
        assert one.process.wait(HUNG) == 0, one.said
        assert f"job {job.id}: COMPLETED" in one.said


def _age(run_dir: Path) -> None:
    for path in [*run_dir.rglob("*"), run_dir]:
        os.utime(path, (time.time() - 60,) * 2)
