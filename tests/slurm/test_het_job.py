"""A heterogeneous job of another tool: its components are jobs of their own to every command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.cluster import Lab
from tests.support.installed_command import SCRIPTS, Site, until


@pytest.fixture
def het(lab: Lab, site: Site) -> Iterator[str]:
    """A job of two components of a node each, whose steps have begun."""
    job = lab.run(["sbatch", "--parsable", str(SCRIPTS / "het_hold.sh")], cwd=site.project).stdout.strip()
    log = site.project / f"slurm-{job}.out"
    until(lambda: log.exists() and len(log.read_text().splitlines()) >= 3, 60, lambda: f"the log of {job}")
    yield job
    lab.run(["scancel", job])


def nodes(site: Site, *words: str) -> dict[str, str]:
    return {one["job_id"]: one["nodes"] for one in site.json(*words)}


def test_the_components_of_a_job_of_another_tool(site: Site, het: str) -> None:
    first, second = f"{het}+0", f"{het}+1"
    both = nodes(site, "list", "--name", "policy-reward")
    assert set(both) == {first, second} and both[first] != both[second]
    assert nodes(site, "status", het) == both
    assert nodes(site, "status", second) == {second: both[second]}
    assert [one["job_id"] for one in site.json("why", second)] == [second]
    assert {row["job_id"] for row in site.json("top")} >= {first, second}
    for word in (het, second):
        assert f"leader on {both[first]}" in site.cli("logs", word).stdout
    for part in (first, second):
        assert site.cli("exec", part, "--", "hostname").stdout.split() == [both[part]]
    assert f"give one of them: {first}, {second}" in site.cli("exec", het, "--", "hostname", status=2).stderr
    assert site.cli("cancel", second).stdout == f"Cancelled {second}\n"
    until(lambda: site.state(second)["state"] not in ("RUNNING", "COMPLETING"))
    assert site.cli("cancel", second).stdout.startswith(f"Not cancelled {second}: already ended")
    assert site.state(first)["state"] == "RUNNING", "as scancel does"
    assert f"Cancelled {first}\n" in site.cli("cancel", het).stdout
