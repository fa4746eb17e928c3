"""Many submit at once while a real controller is frozen and restarted, and sbatch killed: nothing is lost or doubled.

What became of a submission is taken from Slurm's own account (squeue and sacct, by job name), never from ours.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterrun.records import run_record
from lab.cluster import Lab
from tests.support.installed_command import Site, until
from tests.support.submit_tools import Fleet, all_over, held_by_slurm, runs_of

MakeSite = Callable[[Lab | None], Site]
FROZEN = 12.0  # seconds: longer than Slurm's MessageTimeout, so that each sbatch under way is cut off


@pytest.fixture
def site(fresh_lab: Lab, new_site: MakeSite) -> Site:
    return new_site(fresh_lab)


def submit_under_faults(
    lab: Lab, site: Site, template: Path, make_fleet: Callable[..., Fleet], rng: random.Random, count: int, faults: int
) -> None:
    ctld = lab.daemon("slurmctld")
    kinds = (["freeze", "restart", "kill sbatch"] * faults)[:faults]
    rng.shuffle(kinds)
    at = sorted(rng.sample(range(1, count * 7 // 10), faults))
    fleet = make_fleet(site, template, {f"sweep,{i}": count // 4 for i in range(4)})
    began = time.monotonic()
    for kind, number in zip(kinds, at, strict=True):
        until(lambda n=number: fleet.begun > n, 120, lambda: f"only {fleet.begun} begun: {fleet.errors[-5:]}", 0.01)
        time.sleep(rng.random() * 0.1)
        assert fleet.busy, "the faults came too late"
        if kind == "freeze":
            ctld.stop()
            time.sleep(FROZEN)
            ctld.cont()
        elif kind == "restart":
            ctld.restart()
        else:
            until(fleet.kill_sbatch, 60, lambda: f"no sbatch: {fleet.errors[-5:]}", 0.001)
    results = fleet.join(240 + count)
    for one in results:
        if one.get("job_id") is None and "run_id" in one:  # honest: it could not be known then
            site.cli("submit", "--recover", one["run_id"])
            record = run_record.load(Path(one["run_dir"]))
            assert record is not None
            one["job_id"] = str(record.job_id)
    seconds = time.monotonic() - began
    all_over(lab)
    mine = f",of,{count // 4}."  # accounting still knows those of the test before
    slurms = {name: ids for name, ids in held_by_slurm(lab).items() if name.startswith("sweep,") and mine in name}
    known = {one["name"]: one["job_id"] for one in results if "name" in one}
    lost = [name for name in known if name not in slurms]
    doubled = [name for name, ids in slurms.items() if len(ids) > 1]
    wrong = [name for name, job in known.items() if name in slurms and job not in slurms[name]]
    unknown = [name for name in slurms if name not in known]
    print(f"{count} submissions, {', '.join(kinds)}, {seconds:.0f} s: {len(lost)} lost, {len(doubled)} doubled, "
          f"{len(wrong)} wrong ids, {len(unknown)} without a record, {len(results) - len(known)} not made; "
          f"notices: {fleet.notices()}")  # fmt: skip
    refused = [one for one in results if "name" not in one]  # the sbatch of a submission, not of its check, was killed
    assert {one["error"] for one in refused} <= {"sbatch failed; no job was created"}, refused
    assert len(refused) <= kinds.count("kill sbatch")
    assert len(known) == len(runs_of(site)) == count - len(refused)
    assert not lost and not doubled and not wrong and not unknown, (lost, doubled, wrong, unknown)
    ran = {path.parent.name: path.read_text().split() for path in site.project.glob(".clusterrun/runs/*/ran")}
    assert sorted(ran.values()) == sorted([job] for job in known.values()), "each ran once"
    states = site.listed("--all")
    assert {state["job_id"] for state in states} == set(known.values())
    assert {state["state"] for state in states} == {"COMPLETED"}


def test_a_frozen_and_a_restarted_controller_and_a_killed_sbatch_lose_and_double_nothing(
    fresh_lab: Lab, site: Site, template: Path, fleets: Callable[..., Fleet], rng: random.Random
) -> None:
    submit_under_faults(fresh_lab, site, template, fleets, rng, count=20, faults=3)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_five_hundred_submissions_under_forty_five_faults(
    fresh_lab: Lab, site: Site, template: Path, fleets: Callable[..., Fleet], rng: random.Random
) -> None:
    submit_under_faults(fresh_lab, site, template, fleets, rng, count=500, faults=45)
