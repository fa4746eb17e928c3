"""Jobs that clusterrun did not submit: another user's, and arrays of 50 tasks, on Slurm with accounting and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.support.installed_command import ONE_RANK, SCRIPTS, Site, until


@pytest.fixture(scope="module")
def site(any_lab: Lab, new_site: Callable[[Lab | None], Site]) -> Site:
    return new_site(any_lab)


def sbatch(lab: Lab, *options: str, **kwargs: str) -> str:
    done = lab.run(["sbatch", "--parsable", "--output=/dev/null", *options], **kwargs)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def ended(any_lab: Lab) -> str:
    """An array of 50 tasks that are over, the odd ones badly."""
    array = sbatch(any_lab, "--array=0-49", "--wrap", "exit $((SLURM_ARRAY_TASK_ID % 2))")

    def over() -> bool:
        states = any_lab.run(["squeue", "-h", "-r", "-t", "all", "-j", array, "-o", "%T"]).stdout.split()
        return len(states) == 50 and set(states) == {"COMPLETED", "FAILED"}

    until(over, 60, lambda: "the array's end")
    return array


@pytest.fixture
def waiting(any_lab: Lab, request: pytest.FixtureRequest) -> str:
    """An array of 50 tasks that wait."""
    array = sbatch(any_lab, "--array=0-49", "--begin=now+1hour", "--wrap", "true")
    request.addfinalizer(lambda: any_lab.run(["scancel", array]))
    return array


@pytest.fixture
def theirs(any_lab: Lab, request: pytest.FixtureRequest) -> str:
    """A waiting job of the user nobody."""
    job = sbatch(any_lab, "--begin=now+1hour", "--wrap", "true", user="nobody")
    request.addfinalizer(lambda: any_lab.run(["scancel", job]))
    return job


def test_ended_array_is_told_task_by_task(site: Site, ended: str) -> None:
    one, other = site.json("status", f"{ended}_4", f"{ended}_5")
    assert (one["job_id"], one["state"]) == (f"{ended}_4", "COMPLETED")
    assert (other["job_id"], other["state"]) == (f"{ended}_5", "FAILED")
    states = {state["job_id"]: state["state"] for state in site.json("status", ended)}
    assert states == {f"{ended}_{task}": ("FAILED" if task % 2 else "COMPLETED") for task in range(50)}
    assert f"no such job: {ended}_50" in site.cli("status", f"{ended}_50", status=4).stderr


def test_waiting_array_is_one_row_and_its_task_another(site: Site, waiting: str) -> None:
    (whole,) = site.json("status", waiting)
    assert (whole["job_id"], whole["state"]) == (waiting, "PENDING")
    assert (site.state(f"{waiting}_7")["job_id"], site.state(f"{waiting}_7")["state"]) == (f"{waiting}_7", "PENDING")
    assert f"no such job: {waiting}_50" in site.cli("status", f"{waiting}_50", status=4).stderr


def test_cancelling_a_task_leaves_the_others(site: Site, waiting: str) -> None:
    site.cli("cancel", f"{waiting}_7")
    site.cli("status", f"{waiting}_7", status=4)  # Slurm keeps nothing of a waiting task that was cancelled
    assert site.state(f"{waiting}_8")["state"] == "PENDING"


def test_job_of_another_user_is_shown(site: Site, theirs: str) -> None:
    state = site.state(theirs)
    assert (state["user"], state["state"], state["run_id"]) == ("nobody", "PENDING", None)


def test_job_of_another_user_is_not_cancelled_nor_is_ours_beside_it(site: Site, any_lab: Lab, theirs: str) -> None:
    ours = site.submit(*ONE_RANK, "--sbatch-arg=--begin=now+1hour", "--", str(SCRIPTS / "says_hello.sh"))
    refused = site.cli("cancel", ours.id, theirs, status=4)
    assert f"job {theirs} belongs to nobody" in refused.stderr
    assert any_lab.job(theirs)["JobState"] == any_lab.job(ours.id)["JobState"] == "PENDING"


def test_job_without_a_record_is_waited_for(site: Site, ended: str) -> None:
    assert f"job {ended}" in site.cli("wait", ended, status=1).stderr


def test_job_that_keeps_no_log_is_told_so(site: Site, theirs: str) -> None:
    assert "its output goes to /dev/null" in site.cli("logs", theirs, status=2).stderr


def test_no_record_is_made_of_the_jobs_of_others(site: Site, theirs: str) -> None:
    site.state(theirs)
    assert not list(Path(site.project, ".clusterrun", "jobs").rglob(theirs))
