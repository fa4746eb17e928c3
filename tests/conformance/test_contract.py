"""One contract for every scheduler: this machine alone, Slurm with accounting, Slurm without.

The jobs that tests only look at are submitted together, before the first test of a scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lab.cluster import Lab
from tests.support.installed_command import ONE_RANK, Job, Site

SCHEDULERS = {"local": None, "accounting": "lab", "no-accounting": "lab_no_accounting"}


@pytest.fixture(scope="module", params=SCHEDULERS)
def site(request: pytest.FixtureRequest, new_site: Callable[[Lab | None], Site]) -> Site:
    """A user's empty project on each scheduler in turn."""
    lab = SCHEDULERS[request.param]
    return new_site(request.getfixturevalue(lab) if lab else None)


@dataclass(frozen=True)
class Jobs:
    """What each test looks at; `waiting` starts when `running` is over, `after` when `good` is."""

    good: Job
    bad: Job
    quick: Job
    running: Job
    waiting: Job
    after: Job


@pytest.fixture(scope="module")
def jobs(site: Site) -> Jobs:
    running = site.rank("sleeps.sh", "--job-name", "sleeper")
    good = site.rank("says_hello.sh", "--setup", "sleep 3")
    return Jobs(
        good=good,
        bad=site.rank("fails.sh"),
        quick=site.rank("says_hello.sh", "--setup", "exit 9"),
        running=running,
        waiting=site.rank("sleeps.sh", "--dependency", f"afterok:{running.id}"),
        after=site.rank("says_hello.sh", "--time", "1:00:00", "--dependency", f"afterok:{good.id}"),
    )


def test_submitted_job_has_an_id_and_a_run_folder(site: Site, jobs: Jobs) -> None:
    assert jobs.good.id.removeprefix("" if site.lab else "L").isdigit()
    assert (jobs.good.run_dir / "script.sh").is_file()


def test_log_paths_are_in_the_project_and_named_after_the_job(site: Site, jobs: Jobs) -> None:
    assert jobs.good.out == site.project / "logs" / f"train_{jobs.good.id}.out"
    assert jobs.good.err == site.project / "logs" / f"train_{jobs.good.id}.err"


def test_waiting_job_says_that_it_waits_for_another(site: Site, jobs: Jobs) -> None:
    state = site.state(jobs.waiting)
    assert (state["state"], state["outcome"], state["reason"]) == ("PENDING", "running", "Dependency")


def test_running_job_is_listed_and_a_finished_one_is_not(site: Site, jobs: Jobs) -> None:
    site.wait_joined(jobs.running)
    site.cli("wait", jobs.quick.id, status=1)
    listed = {state["job_id"]: state["state"] for state in site.listed()}
    assert listed[jobs.running.id] == "RUNNING"
    assert jobs.quick.id not in listed


def test_job_that_exits_at_once_failed_with_its_status(site: Site, jobs: Jobs) -> None:
    assert site.cli("wait", jobs.quick.id, status=1)
    state = site.state(jobs.quick)
    assert (state["state"], state["outcome"], state["exit_status"]) == ("FAILED", "failed", 9)


def test_good_job_is_completed(site: Site, jobs: Jobs) -> None:
    site.cli("wait", jobs.good.id)
    state = site.state(jobs.good)
    assert (state["state"], state["outcome"], state["exit_status"]) == ("COMPLETED", "done", 0)


def test_logs_show_what_the_rank_printed(site: Site, jobs: Jobs) -> None:
    site.cli("wait", jobs.good.id)
    assert jobs.good.out.is_file() and jobs.good.err.is_file()
    assert "0: hello from rank 0 of 1\n" in site.cli("logs", jobs.good.id).stdout


def test_failing_job_is_failed_and_names_its_status(site: Site, jobs: Jobs) -> None:
    site.cli("wait", jobs.bad.id, status=1)
    state = site.state(jobs.bad)
    assert (state["state"], state["outcome"], state["exit_status"]) == ("FAILED", "failed", 7)


def test_an_ended_job_says_how_long_it_waited_for_what_and_what_it_used(site: Site, jobs: Jobs) -> None:
    used = site.wait_state(jobs.after, "COMPLETED")["efficiency"]
    assert 0 <= used["seconds"] < 600 and used["asked_s"] == 3600 and used["next"]["time_s"] == 600
    assert used["memory_gib"] is None or 0 < used["memory_gib"] < 4
    (why,) = site.json("why", jobs.after.id)
    assert 0 <= why["waited"]["blocked_s"] <= why["waited"]["seconds"] < 600  # the other job may have ended before


def test_following_a_failed_job_exits_with_its_outcome(site: Site, jobs: Jobs) -> None:
    shown = site.cli("logs", jobs.bad.id, "-f", status=1)
    assert "0! giving up\n" in shown.stdout
    assert "rank 0 on" in shown.stderr and "failed first" in shown.stderr


def test_run_id_is_as_good_as_a_job_id(site: Site, jobs: Jobs) -> None:
    assert site.state(jobs.running.run_dir.name)["job_id"] == jobs.running.id


def test_job_is_found_from_another_folder(site: Site, jobs: Jobs) -> None:
    assert site.state(jobs.running, cwd=site.home)["run_dir"] == str(jobs.running.run_dir)


def test_several_jobs_are_answered_in_the_order_asked(site: Site, jobs: Jobs) -> None:
    asked = [jobs.waiting.id, jobs.running.id, jobs.quick.id]
    assert [state["job_id"] for state in site.json("status", *asked)] == asked


def test_dry_run_of_cancel_lists_and_touches_nothing(site: Site, jobs: Jobs) -> None:
    found = [one for one in site.json("cancel", "--all", "--dry-run") if one["run_dir"].startswith(str(site.project))]
    shown = {state["job_id"]: state["state"] for state in found}
    assert shown == {jobs.running.id: "RUNNING", jobs.waiting.id: "PENDING"}
    states = [state["state"] for state in site.json("status", jobs.running.id, jobs.waiting.id)]
    assert states == ["RUNNING", "PENDING"]


def test_waiting_job_can_be_cancelled(site: Site, jobs: Jobs) -> None:
    site.cli("cancel", jobs.waiting.id)
    state = site.wait_state(jobs.waiting, "CANCELLED")
    assert state["outcome"] == "cancelled"
    assert jobs.waiting.attempts() == []


def test_running_job_can_be_cancelled_and_says_so_in_its_record(site: Site, jobs: Jobs) -> None:
    site.wait_joined(jobs.running)
    site.cli("cancel", jobs.running.id)
    site.cli("wait", jobs.running.id, status=1)
    assert site.state(jobs.running)["state"] == "CANCELLED"
    assert site.wait_end(jobs.running, 10)["signal"] == "TERM"


def test_cancelling_a_finished_job_changes_nothing(site: Site, jobs: Jobs) -> None:
    site.cli("wait", jobs.good.id)
    assert "already ended: COMPLETED" in site.cli("cancel", jobs.good.id).stdout
    assert site.state(jobs.good)["state"] == "COMPLETED"


@pytest.mark.parametrize("verb", ["status", "cancel", "wait", "logs"])
def test_unknown_id_is_no_such_job(site: Site, verb: str) -> None:
    unknown = "999999" if site.lab else "L999999"
    assert f"no such job: {unknown}" in site.cli(verb, unknown, status=4).stderr


@pytest.mark.parametrize("verb", ["status", "cancel", "wait", "logs"])
def test_text_that_is_no_job_id_is_a_wrong_request(site: Site, verb: str) -> None:
    assert "not a job id" in site.cli(verb, "12; rm", status=2).stderr


def test_script_that_does_not_exist_leaves_nothing(site: Site) -> None:
    before = len(list((site.project / ".clusterrun" / "runs").glob("*")))
    site.cli("submit", *site.scheduler, *ONE_RANK, "--", "no_such.sh", status=2)
    assert len(list((site.project / ".clusterrun" / "runs").glob("*"))) == before
