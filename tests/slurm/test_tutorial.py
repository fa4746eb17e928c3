"""The page of a first own script is true on a real Slurm cluster, command by command."""

from __future__ import annotations

import re
from collections.abc import Callable

from lab.cluster import Lab
from tests.support.installed_command import Site
from tests.support.tutorial import follow

FEWER_RANKS = (
    ("gpus-per-node 2", "gpus-per-node 1"),
    ("gpus-per-node = 2", "gpus-per-node = 1"),
    ("2 GPUs x", "1 GPU x"),
)


def test_own_script_does_what_its_page_says(lab: Lab, new_site: Callable[[Lab | None], Site]) -> None:
    site = new_site(lab)
    assert len(follow(site, "train-py-on-slurm.md", *FEWER_RANKS, (" on site:", f" on {lab.name}:"))) == 14
    first_steps = [re.findall(r"step (\d+)/1000000", path.read_text())[:1] for path in site.project.glob("logs/*.out")]
    begun, resumed = sorted(int(step) for steps in first_steps for step in steps)
    assert begun == 50 < resumed, "the resumed job began at its checkpoint"
