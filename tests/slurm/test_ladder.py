"""A ladder on Slurm, with accounting and without: a rung that fails stops it, and the report names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.cluster import Lab
from tests.installed_command import Site

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
