"""`list`, `status` and `wait` on real Slurm: arrays, jobs of other tools, filters, and a controller that is silent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.cluster import Lab
from tests.support.installed_command import Site, until
from tests.support.patience import HUNG
from tests.support.submit_tools import NEVER, light

MakeSite = Callable[[Lab | None], Site]


def sbatch(lab: Lab, *options: str) -> str:
    done = lab.run(["sbatch", "--parsable", "--output=/dev/null", *options])
    assert done.returncode == 0, done.stderr
    return str(done.stdout.strip())


@pytest.fixture
def site(fresh_lab: Lab, new_site: MakeSite) -> Site:
    return new_site(fresh_lab)


@pytest.fixture
def running(any_lab: Lab) -> Iterator[str]:
    """An array of 20 tasks, of which 3 run at a time, for as long as the test lasts."""
    array = sbatch(any_lab, "--array=0-19%3", "--job-name=theirs", "--wrap", "sleep 600")
    until(lambda: any_lab.run(["squeue", "-h", "-t", "R", "-j", array]).stdout.count("\n") == 3, 30)
    yield array
    any_lab.run(["scancel", array])


def by_id(found: list[dict[str, Any]], array: str) -> dict[tuple[str, str | None], int]:
    return {(row["state"], row["tasks"]): row["task_count"] for row in found if row["job_id"].split("_")[0] == array}


def test_an_array_is_collapsed_or_by_task(any_lab: Lab, new_site: MakeSite, running: str) -> None:
    site = new_site(any_lab)
    assert by_id(site.json("list"), running) == {("RUNNING", "0-2"): 3, ("PENDING", "3-19%3"): 17}
    line = next(line for line in site.cli("list").stdout.splitlines() if line.startswith(f"{running}_[0-2]"))
    assert line.split("\t")[1:3] == ["theirs", "RUNNING"]
    tasks = [row["job_id"] for row in site.json("list", "--expand", "--name", "theirs") if row["run_id"] is None]
    assert tasks == [f"{running}_{task}" for task in range(20)]
    ours = any_lab.run(["squeue", "-h", "-r", "-j", running, "-o", "%i"]).stdout.split()
    assert sorted(ours) == sorted(tasks), "the same tasks as squeue --array tells"


def test_filters_and_holding(site: Site, template: Any) -> None:
    lab = site.lab
    assert lab is not None
    run = light(site, template, NEVER, "--job-name", "sweep-a")
    held = sbatch(lab, "--hold", "--job-name=other", "--wrap", "true")
    assert {row["job_id"] for row in site.json("list", "--state", "PD")} == {run.id, held}
    assert [row["job_id"] for row in site.json("list", "--name", "sweep-*")] == [run.id]
    assert [row["job_id"] for row in site.json("list", "--name", "other", "--since", "1h")] == [held]
    assert "JobHeldUser" in site.cli("list", "--name", "other").stdout
    assert site.cli("list", "--state", "RUNNING").stdout == ""
    assert "no jobs in state RUNNING" in site.cli("list", "--state", "RUNNING").stderr
    assert "cancel" in site.cli("status", held).stdout
    site.cli("cancel", "--all", "--yes")
    assert [row["job_id"] for row in site.json("list")] == [held], "cancel --all touches runs of clusterrun alone"


def test_history_and_one_accounting(site: Site, template: Any) -> None:
    lab = site.lab
    assert lab is not None
    run = light(site, template)
    site.cli("wait", run.id)
    assert site.cli("list").stdout == ""
    (row,) = [row for row in site.json("list", "--all") if row["run_id"] == run.run_dir.name]
    assert (row["state"], row["outcome"]) == ("COMPLETED", "done")
    assert [row["run_id"] for row in site.listed("--state", "completed", "--name", row["name"])] == [row["run_id"]]


def test_a_controller_that_is_stopped_changes_no_state(site: Site, template: Any) -> None:
    lab = site.lab
    assert lab is not None
    run = light(site, template, NEVER)
    other = sbatch(lab, "--hold", "--wrap", "true")
    before = site.json("list")
    ctld = lab.daemon("slurmctld")
    ctld.terminate()
    status, cancel = site.start("status", run.id, other), site.start("cancel", run.id)  # each squeue takes ten seconds
    listed = site.cli("list", "--json")
    after = json.loads(listed.stdout)["data"]
    assert [(r["job_id"], r["state"], r["reason"]) for r in after] == [
        (r["job_id"], r["state"], r["reason"]) for r in before
    ]
    assert all(row["as_of"] for row in after) and "Slurm is not responding: squeue" in listed.stderr
    said, _ = status.communicate(timeout=HUNG)
    assert status.returncode == 75 and said.count("as of ") == 2
    said, _ = cancel.communicate(timeout=HUNG)
    assert cancel.returncode == 3 and "did not respond; nothing was" in said
    ctld.start()
    until(lambda: all(row["as_of"] is None for row in site.json("list")), 30, pause=0.5)
    assert site.state(run)["state"] == "PENDING"


def test_watching_named_jobs_until_they_are_over(any_lab: Lab, new_site: MakeSite, template: Any) -> None:
    site = new_site(any_lab)
    run = light(site, template, "--sbatch-arg=--hold")
    other = sbatch(any_lab, "--hold", "--wrap", "exit 3")
    watching = site.start("status", run.id, other, "--watch")
    assert watching.stdout is not None
    until(lambda: "JobHeldUser" in watching.stdout.readline(), 20)
    any_lab.run(["scontrol", "release", run.id, other])
    said, _ = watching.communicate(timeout=HUNG)
    assert watching.returncode == 0, said
    last = said.split("\n\n")[-2:]
    assert "COMPLETED" in last[0] and run.id in last[0] and "FAILED" in last[1] and other in last[1], said


def test_waiting_for_jobs_of_another_tool(any_lab: Lab, new_site: MakeSite) -> None:
    site = new_site(any_lab)
    good = sbatch(any_lab, "--array=0-3", "--wrap", "true")
    bad = sbatch(any_lab, "--array=0-3", "--wrap", "exit $((SLURM_ARRAY_TASK_ID == 2))")
    assert site.cli("wait", good, timeout=90).returncode == 0
    rows = site.json("wait", bad, status=1)
    assert sorted((row["job_id"], row["state"]) for row in rows) == [
        (f"{bad}_{task}", "FAILED" if task == 2 else "COMPLETED") for task in range(4)
    ]
    assert site.cli("wait", f"{bad}_1", good).returncode == 0


def test_a_job_that_nobody_can_tell_of(lab_no_accounting: Lab, new_site: MakeSite) -> None:
    site = new_site(lab_no_accounting)
    array = sbatch(lab_no_accounting, "--array=0-1", "--hold", "--wrap", "true")
    waiting = site.start("wait", array)
    assert waiting.stdout is not None
    until(lambda: "2 tasks PENDING" in waiting.stdout.readline(), 20)
    lab_no_accounting.run(["scancel", f"{array}_1"])  # Slurm keeps nothing of a task that was cancelled while it waited
    lab_no_accounting.run(["scontrol", "release", array])
    said, _ = waiting.communicate(timeout=HUNG)
    assert waiting.returncode == 75 and "has no accounting" in said and "COMPLETED" in said
