"""Jobs that were accepted and lost with the controller, whose ids others got."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.cluster import Lab
from tests.support.installed_command import Job, Site, until
from tests.support.submit_tools import NEVER, age, light, wrap_sbatch

MakeSite = Callable[[Lab | None], Site]


def saved(lab: Lab) -> None:
    """Wait until what slurmctld knows now is on its disk."""
    time.sleep(0.01)  # mtimes are coarse
    since = time.time()
    (some,) = lab.run(["squeue", "-h", "-o", "%A"]).stdout.split()[:1]
    lab.run(["scontrol", "update", f"jobid={some}", "priority=4711"])  # it saves only after a change
    until(lambda: (lab.folder / "state" / "job_state").stat().st_mtime > since, 20, lambda: "slurmctld's state on disk")


def submit_and_lose(lab: Lab, site: Site, template: Path) -> Job:
    """Submit a job whose acceptance slurmctld forgets: it is killed as it answers, before it has saved the job."""
    ctld = lab.daemon("slurmctld")
    for _ in range(20):  # now and then it has saved the job within milliseconds
        path = wrap_sbatch(site.home, f'real "$@" && kill -9 {ctld.pid}', site.env["PATH"])
        job = light(site, template, NEVER, env={"PATH": path})
        ctld.start()
        if not lab.job(job.id):
            return job
        site.cli("cancel", job.id)
        ctld.restart()  # it saves what it knows, or the next kill brings the job back
    raise AssertionError("slurmctld saved each job before it was killed")


def test_lost_jobs_are_told_as_lost_and_never_as_who_got_their_id(
    fresh_any_lab: Lab, new_site: MakeSite, template: Path
) -> None:
    lab, site = fresh_any_lab, new_site(fresh_any_lab)
    running = light(site, template, "--setup", "sleep 600")
    waiting = light(site, template, NEVER)
    lab.wait_job(running.id, "RUNNING")
    saved(lab)
    lost = [submit_and_lose(lab, site, template)]
    old = {job.id: job for job in lost}
    before = {job.id: job.run_dir.name for job in lost}

    # while its id is free, and after others got it
    for given_out in (False, True):
        if given_out:
            top = max(int(job.id) for job in lost)
            others: list[str] = []
            while not others or int(others[-1]) < top:
                argv = ["sbatch", "--parsable", "--output=/dev/null", "--job-name=other", "--wrap=exit 3"]
                others.append(lab.run(argv, env=site.env).stdout.strip())
            assert set(old) & set(others), "no id was given out twice"
            lab.wait_job(top, "FAILED")
        for job in lost:
            not_of_others(site, before[job.id])  # also as long as it is too early to call it lost
            age(job.run_dir, 20)
            assert not_of_others(site, before[job.id])["outcome"] == "lost"
            assert site.cli("status", before[job.id], status=75).stdout.count("(lost)") == 1
            assert not_of_others(site, job.id)["run_id"] == before[job.id]
        assert site.state(running)["state"] == "RUNNING"
        assert site.state(waiting)["state"] == "PENDING"
        lost_ones = dict.fromkeys(before.values(), "lost")
        listed = {state["run_id"]: state["outcome"] for state in site.listed()}
        assert listed == {running.run_dir.name: "running", waiting.run_dir.name: "running"} | lost_ones


def test_an_id_given_to_a_second_run_leads_to_it_and_the_first_stays_lost(
    fresh_any_lab: Lab, new_site: MakeSite, template: Path
) -> None:
    lab, site = fresh_any_lab, new_site(fresh_any_lab)
    first = submit_and_lose(lab, site, template)
    second = next((job for job in (light(site, template) for _ in range(5)) if job.id == first.id), None)
    assert second is not None, "the id was not given out again"
    lab.wait_job(second.id, "COMPLETED")
    state = site.state(second)
    assert (state["run_id"], state["state"]) == (second.run_dir.name, "COMPLETED")
    assert f"(older: {first.run_dir.name})" in site.cli("status", first.id).stderr
    age(first.run_dir, 20)
    assert not_of_others(site, first.run_dir.name)["outcome"] == "lost"
    lab.run(["scancel", second.id])
    assert "already ended" in site.cli("cancel", second.id, status=None).stdout + site.cli("list").stderr


def not_of_others(site: Site, which: str) -> dict[str, Any]:
    """A lost run's state, which must never be that of the job with its id."""
    state = site.state(which, status=75)
    assert state["state"] == "UNKNOWN" and state["outcome"] in ("unknown", "lost"), state
    assert not state["nodes"] and state["exit_status"] is None, state
    return state
