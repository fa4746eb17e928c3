"""A clusterrun that is killed or interrupted while it submits, and how the next command settles it."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterrun.records import run_record
from lab.cluster import Lab
from tests.support.installed_command import Site, until
from tests.support.patience import HUNG
from tests.support.submit_tools import NEVER, age, all_over, begin, held_by_slurm, light, runs_of, wrap_sbatch

MakeSite = Callable[[Lab | None], Site]


@pytest.fixture
def site(fresh_lab: Lab, new_site: MakeSite) -> Site:
    return new_site(fresh_lab)


def test_killed_before_sbatch_it_is_told_and_recover_submits_once(fresh_lab: Lab, site: Site, template: Path) -> None:
    path = wrap_sbatch(site.home, "kill -9 $PPID; exit 1", site.env["PATH"])
    dying = begin(site, template, "--job-name", "before", env={"PATH": path})
    dying.communicate(timeout=HUNG)
    assert dying.returncode == -signal.SIGKILL
    (run,) = runs_of(site)
    (state,) = site.listed()
    assert (state["job_id"], state["run_id"], state["outcome"]) == (None, run.name, "unknown")
    assert f"submit --recover {run.name}" in state["reason"]
    # nobody can be at it a minute later
    age(run, 100)
    (state,) = site.json("status", run.name, status=75)
    assert state["reason"].startswith("never submitted")
    job = site.json("submit", "--recover", run.name)["job_id"]
    site.wait_state(job, "COMPLETED")
    assert [ids for name, ids in held_by_slurm(fresh_lab).items() if name.startswith("before.")] == [[job]]


def test_killed_after_sbatch_the_next_command_adopts_the_job(fresh_lab: Lab, site: Site, template: Path) -> None:
    path = wrap_sbatch(site.home, 'real "$@" >"$HOME/id" && kill -9 $PPID', site.env["PATH"])
    for name, options in (("killed-ran", ()), ("killed-waits", (NEVER,))):
        before = {*runs_of(site)}
        dying = begin(site, template, "--job-name", name, *options, env={"PATH": path})
        dying.communicate(timeout=HUNG)
        assert dying.returncode == -signal.SIGKILL
        job = (site.home / "id").read_text().strip()
        (run,) = {*runs_of(site)} - before
        known = run_record.load(run)
        assert known is not None and known.job_id is None
        (state,) = (s for s in site.listed("--all") if s["run_id"] == run.name)
        assert state["job_id"] == job and state["outcome"] in ("running", "done")
        assert site.state(job)["run_id"] == run.name
        assert [ids for held, ids in held_by_slurm(fresh_lab).items() if held.startswith(f"{name}.")] == [[job]]


def test_killed_while_sbatch_waits_for_a_frozen_controller(fresh_lab: Lab, site: Site, template: Path) -> None:
    site.cli("list")
    ctld = fresh_lab.daemon("slurmctld")
    path = wrap_sbatch(site.home, 'echo $$ >"$HOME/pid"; real "$@"', site.env["PATH"])
    ctld.stop()
    dying = begin(site, template, "--job-name", "during", env={"PATH": path})
    until((site.home / "pid").exists, 30, lambda: "sbatch")
    time.sleep(1.0)  # the request is on its way
    dying.kill()
    dying.communicate(timeout=HUNG)
    ctld.cont()
    ctld.wait_ready()
    (run,) = runs_of(site)
    state = until(lambda: next((s for s in site.listed("--all") if s["job_id"]), None), 30, lambda: "its job")
    assert state["run_id"] == run.name
    name = re.compile(r"during\.")
    assert [ids for held, ids in held_by_slurm(fresh_lab).items() if name.match(held)] == [[state["job_id"]]]


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_killed_at_any_moment(fresh_lab: Lab, site: Site, template: Path, rng: random.Random) -> None:
    began = time.monotonic()
    light(site, template)
    whole = time.monotonic() - began
    for number in range(20):
        dying = begin(site, template, "--job-name", f"kill,{number}")
        time.sleep(rng.uniform(0.3, 1.1) * whole)
        dying.kill()
        dying.communicate(timeout=HUNG)
    time.sleep(2)  # an orphaned sbatch needs no longer
    states = [s for s in site.listed("--all") if s["name"].startswith("kill,")]
    cut = [s["run_id"] for s in states if s["job_id"] is None]
    for run_id in cut:
        site.cli("submit", "--recover", run_id)
    all_over(fresh_lab)
    states = [s for s in site.listed("--all") if s["name"].startswith("kill,")]
    slurms = {n.rpartition(".")[0]: ids for n, ids in held_by_slurm(fresh_lab).items() if n.startswith("kill,")}
    print(f"killed 20: {len(states)} left a record, {len(cut)} of them had not been sent, {len(slurms)} jobs")
    assert {s["name"]: [s["job_id"]] for s in states} == slurms
    assert {s["state"] for s in states} == {"COMPLETED"}


# -- the rest --------------------------------------------------------------------------------------------------------


def test_ctrl_c_waits_for_the_answer_and_leaves_the_job(fresh_lab: Lab, site: Site, template: Path) -> None:
    path = wrap_sbatch(site.home, 'kill -INT $PPID; sleep 0.1; kill -INT $PPID; real "$@"', site.env["PATH"])
    pressed = begin(site, template, NEVER, env={"PATH": path})
    said, _ = pressed.communicate(timeout=HUNG)
    assert pressed.returncode == 130, said
    job = re.search(r"^Submitted job (\d+) ", said, re.MULTILINE)
    assert job and "Traceback" not in said, said
    assert fresh_lab.job(job[1])["JobState"] == "PENDING"
    assert site.state(job[1])["run_id"] == runs_of(site)[0].name


def test_ctrl_c_after_a_moment_leaves_a_submission_that_can_be_settled(site: Site, template: Path) -> None:
    path = wrap_sbatch(site.home, "kill -INT $PPID; sleep 15; kill -INT $PPID; sleep 60", site.env["PATH"])
    pressed = begin(site, template, NEVER, env={"PATH": path})
    said, _ = pressed.communicate(timeout=HUNG)
    assert pressed.returncode == 130, said
    run_id = runs_of(site)[0].name
    assert f"clusterrun submit --recover {run_id}" in said and "Traceback" not in said, said
    site.cli("submit", "--recover", run_id)
    assert site.state(run_id)["state"] == "PENDING"
