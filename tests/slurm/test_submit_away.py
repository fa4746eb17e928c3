"""Submitting while a real controller is dead or silent, and asking while accounting is down."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterrun.base.errors import Ambiguous, ClusterrunError, NotDelivered
from clusterrun.cluster import Cluster
from clusterrun.jobspec.fields import Value
from clusterrun.submit import protocol
from clusterrun.submit.plan import Plan
from clusterrun.submit.request import SubmitArgs
from lab.cluster import Lab
from tests.support.installed_command import Site, until
from tests.support.submit_tools import NEVER, begin, fast, held_by_slurm, light, runs_of

MakeSite = Callable[[Lab | None], Site]


@pytest.fixture
def site(fresh_lab: Lab, new_site: MakeSite) -> Site:
    return new_site(fresh_lab)


def plan(site: Site, template: Path, name: str) -> tuple[Cluster, Plan]:
    """A plan as the command line makes it, to be submitted with a clock of the test's own."""
    cluster = Cluster(cwd=site.project, environ=site.env)
    flags = {"scheduler": "slurm", "job-name": name, "template": str(template), "gpus-per-node": 0, "tasks-per-node": 1}
    made = cluster.plan(SubmitArgs(command=("true",), flags={k: Value(v, "test") for k, v in flags.items()}))
    store = cluster.store()
    store.prepare(False)
    store.stage(made.record, made.spec_json(), made.script)
    return cluster, made


def impatient(lab: Lab, site: Site) -> None:
    """Let this site's Slurm commands wait 2 s for an answer instead of 10."""
    conf = site.home / "slurm.conf"
    conf.write_text(lab.conf.read_text() + "MessageTimeout=2\n")
    site.env["SLURM_CONF"] = str(conf)


def test_with_no_controller_nothing_is_submitted_then_or_later(fresh_lab: Lab, site: Site, template: Path) -> None:
    site.cli("list")  # the cluster is known
    impatient(fresh_lab, site)
    cluster, made = plan(site, template, "undelivered")
    fresh_lab.daemon("slurmctld").kill()
    said: list[str] = []
    with pytest.raises(ClusterrunError) as caught:
        protocol.submit(
            cluster.store(),
            cluster.scheduler("slurm"),
            made.record,
            made.submission,
            notify=said.append,
            clock=fast(20),
        )
    assert isinstance(caught.value, NotDelivered) and "nothing was submitted" in str(caught.value), caught.value.detail
    assert "connect failure" in caught.value.detail and "scontrol ping" in caught.value.hint
    assert "trying again" in said[0]
    assert not runs_of(site)
    fresh_lab.daemon("slurmctld").start()
    assert not [name for name in held_by_slurm(fresh_lab) if name.startswith("undelivered.")]


def test_with_a_silent_controller_it_is_not_known_and_recover_settles_it(
    fresh_lab: Lab, site: Site, template: Path
) -> None:
    site.cli("list")
    impatient(fresh_lab, site)
    cluster, made = plan(site, template, "silent")
    ctld = fresh_lab.daemon("slurmctld")
    ctld.stop()
    with pytest.raises(Ambiguous, match="cannot tell whether") as caught:
        protocol.submit(
            cluster.store(), cluster.scheduler("slurm"), made.record, made.submission, notify=str, clock=fast(20)
        )
    assert caught.value.hint == f"run `clusterrun submit --recover {made.record.run_id}` later"
    ctld.cont()
    ctld.wait_ready()
    data = site.json("submit", "--recover", made.record.run_id, env={"SLURM_CONF": str(fresh_lab.conf)})
    name = f"silent.{made.submission.token[:8]}"
    until(
        lambda: held_by_slurm(fresh_lab).get(name) == [data["job_id"]], 20, lambda: str(held_by_slurm(fresh_lab)), 0.5
    )
    assert site.json("submit", "--recover", made.record.run_id)["job_id"] == data["job_id"], "settled is settled"


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_the_limits_of_the_command_line_when_the_controller_is_away(
    fresh_lab: Lab, fresh_lab_no_accounting: Lab, new_site: MakeSite, template: Path
) -> None:
    dead, silent = new_site(fresh_lab), new_site(fresh_lab_no_accounting)
    for one in (dead, silent):
        one.cli("list")
    fresh_lab.daemon("slurmctld").kill()
    fresh_lab_no_accounting.daemon("slurmctld").stop()
    began = time.monotonic()
    undelivered = begin(dead, template, "--job-name", "undelivered")
    ambiguous = begin(silent, template, "--job-name", "silent")
    said, _ = undelivered.communicate(timeout=200)
    took = time.monotonic() - began
    assert (undelivered.returncode, took < 150) == (3, True), (took, said)
    assert "nothing was submitted" in said and said.count("connect failure") == 1 and "hint: " in said
    assert not runs_of(dead)
    said, _ = ambiguous.communicate(timeout=200)
    took = time.monotonic() - began
    (run,) = runs_of(silent)
    assert (ambiguous.returncode, took < 180) == (75, True), (took, said)
    assert f"clusterrun submit --recover {run.name}" in said
    fresh_lab.daemon("slurmctld").start()
    fresh_lab_no_accounting.daemon("slurmctld").cont()
    fresh_lab_no_accounting.daemon("slurmctld").wait_ready()
    job = silent.json("submit", "--recover", run.name)["job_id"]
    (name,) = (name for name in held_by_slurm(fresh_lab_no_accounting) if name.startswith("silent."))
    assert held_by_slurm(fresh_lab_no_accounting)[name] == [job]
    assert not [name for name in held_by_slurm(fresh_lab) if name.startswith("undelivered.")]


def test_asking_works_while_accounting_is_down(fresh_lab: Lab, site: Site, template: Path) -> None:
    lab = fresh_lab
    done, gone, waits = (light(site, template), light(site, template, NEVER), light(site, template, NEVER))
    site.wait_state(done, "COMPLETED")
    lab.daemon("slurmdbd").kill()
    new = light(site, template, NEVER)
    lab.run(["scancel", gone.id])
    listed = {state["job_id"]: state["state"] for state in site.listed("--all")}
    assert listed == {done.id: "COMPLETED", gone.id: "CANCELLED", waits.id: "PENDING", new.id: "PENDING"}
    assert [site.state(job)["state"] for job in (done, waits, new)] == ["COMPLETED", "PENDING", "PENDING"]
