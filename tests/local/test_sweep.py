"""A sweep without Slurm: each parameter set is a job on this machine, one after another."""

from __future__ import annotations

from collections.abc import Callable

from lab.cluster import Lab
from tests.support.installed_command import ONE_RANK, Site


def test_the_tasks_run_one_after_another_each_with_its_parameters(new_site: Callable[[Lab | None], Site]) -> None:
    site = new_site(None)
    body = 'mkdir busy && echo "{x} $CLUSTERRUN_SWEEP_X {array_index}" >>ran && rmdir busy'
    words = (*site.scheduler, *ONE_RANK, "--no-check", "--independent", "--launcher", "none", "--", "sh", "-c", body)
    data = site.json("sweep", "--grid", "x=7,8,9", *words)
    site.cli("wait", "sh")
    assert (site.project / "ran").read_text() == "7 7 0\n8 8 1\n9 9 2\n"
    states = site.json("status", "sh")
    assert [one["job_id"] for one in states] == [task["job_id"] for task in data["tasks"]]
    assert {one["outcome"] for one in states} == {"done"}
