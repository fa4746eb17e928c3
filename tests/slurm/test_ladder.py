"""Jobs that wait for others on Slurm, with accounting and without: a ladder that a failed rung stops, and a chain."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.cluster import Lab
from tests.support.installed_command import Site

SCRIPT = "#!/bin/sh\n[ $WORLD_SIZE != 2 ] || exit 7\n"
SHAPE = ("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "2", "--independent", "--ladder")


@pytest.fixture(scope="module", params=["lab", "lab_no_accounting"])
def site(request: pytest.FixtureRequest, new_site: Callable[[Lab | None], Site]) -> Site:
    return new_site(request.getfixturevalue(request.param))


def test_a_failed_rung_stops_the_ladder(site: Site) -> None:
    script = site.project / "two.sh"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    jobs = [rung["job_id"] for rung in site.json("submit", *site.scheduler, *SHAPE, "--", "./two.sh")]
    site.wait_state(jobs[1], "FAILED", timeout=120)
    assert site.wait_state(jobs[2], "CANCELLED", timeout=120)["exit_status"] in (0, None)
    (last,) = site.json("status", jobs[2])
    assert [rung["state"] for rung in last["ladder"]["rungs"]] == ["COMPLETED", "FAILED", "CANCELLED"]
    assert last["ladder"]["stopped_at"] == jobs[1]
    assert f"stopped at rung 2 of 3: job {jobs[1]} is FAILED" in site.cli("status", jobs[2]).stdout


def test_a_chain_runs_in_order_and_a_job_waits_for_its_last_one_by_name(site: Site) -> None:
    for name in ("one", "two", "three"):
        script = site.project / f"{name}.sh"
        script.write_text(f"#!/bin/sh\nsleep 1\necho {name} >>order\n")
        script.chmod(0o755)
        (site.project / f"{name}.toml").write_text(f'command = "./{name}.sh"\n')
    ranks = (*site.scheduler, "--nodes", "1", "--gpus-per-node", "0", "--tasks-per-node", "1")
    site.json("submit", "one.toml", "two.toml", *ranks, "--chain")
    last = site.json("submit", *ranks, "--after-ok", "two", "--", "./three.sh")
    site.wait_state(last["job_id"], "COMPLETED", timeout=120)
    assert (site.project / "order").read_text().split() == ["one", "two", "three"]
