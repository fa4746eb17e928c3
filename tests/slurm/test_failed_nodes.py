"""Nodes that failed twice in a day under the user's runs are left out of the next one; programs that fail are not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.run_folder.node_failures import DAY, LOST, load
from lab.cluster import Lab
from lab.fixtures import require_lab
from lab.procs import kill_pids, pids_in_netns
from tests.support.hangs import LATE, start_now
from tests.support.installed_command import SCRIPTS, Site, until

ENDED = ("COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED")
NODES = 10  # of which one may be left out


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    require_lab()
    with Lab(name=f"t{os.getpid()}f", nodes=NODES, gpus=0, cpus=4, accounting=False) as found:
        yield found


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[Site]:
    """A user with a state folder of their own."""
    site = Site(tmp_path, lab)
    yield site
    site.close()


def node(lab: Lab, number: int) -> str:
    return f"{lab.name}-node{number}"


def fail_twice(user: Site, name: str) -> None:
    for _ in range(2):
        job = user.rank("gpu_fault.sh", "--nodelist", name)
        assert user.wait_state(job, *ENDED)["nodes"] == name


def plan(user: Site, *options: str) -> str:
    """What a submission says, and its script."""
    words = ("--dry-run", "--script", "--no-check", "--gpus-per-node", "0", *options, "--", "true")
    done = user.cli("submit", *user.scheduler, *words)
    return done.stderr + "".join(line for line in done.stdout.splitlines() if "--exclude" in line)


def state_folder(user: Site) -> Path:
    return Path(user.env["CLUSTERRUN_STATE"])


def remembered(user: Site) -> list[Path]:
    return sorted(state_folder(user).glob("nodes/*/*"))


def test_a_node_with_two_hardware_failures_is_left_out_until_it_has_run_well(user: Site, lab: Lab) -> None:
    bad = node(lab, 3)
    assert "leaving out" not in plan(user)
    job = user.rank("gpu_fault.sh", "--nodelist", bad)
    user.wait_state(job, *ENDED)
    assert "leaving out" not in plan(user), "one failure is none"
    user.wait_state(user.rank("gpu_fault.sh", "--nodelist", bad), *ENDED)
    said = plan(user)
    assert f"leaving out {bad} (2 hardware failures in 24 h: GPU fault (Xid 79), job {job.id}, today " in said
    assert f'--exclude="{bad}"' in said
    third = user.rank("says_hello.sh", "--nodes", str(NODES - 1))
    user.wait_state(third, "COMPLETED")
    used = {entry["node"] for entry in (third.start() or {})["ranks"]}
    assert used == {node(lab, number) for number in range(1, NODES + 1)} - {bad}
    assert bad in user.cli("free").stdout and f"{bad}: 2 hardware failures" in user.cli("why", third.id).stdout
    assert "leaving out" not in plan(user, "--allow-nodes") + plan(user, "--nodelist", bad)
    assert "leaving out" not in plan(user, "--nodes", str(NODES)), "the job needs all nodes"
    user.wait_state(user.rank("says_hello.sh", "--nodelist", bad), "COMPLETED")
    assert "leaving out" not in plan(user) and bad not in user.cli("free").stdout.partition("failed or slow")[2]


def test_after_a_day_the_failures_are_forgotten_and_a_profile_may_say_so_before(user: Site, lab: Lab) -> None:
    bad = node(lab, 4)
    fail_twice(user, bad)
    assert f"leaving out {bad}" in plan(user)
    profile = user.project / "clusterrun.toml"
    profile.write_text("allow-nodes = true\n")
    assert "leaving out" not in plan(user) and f"leaving out {bad}" in plan(user, "--no-allow-nodes")
    profile.unlink()
    for path in remembered(user):
        name, at, rest = path.name.split(",", 2)
        path.rename(path.with_name(f"{name},{int(at) - DAY - 60},{rest}"))
    assert "leaving out" not in plan(user)
    user.wait_state(user.rank("gpu_fault.sh", "--nodelist", bad), *ENDED)
    assert len(remembered(user)) == 1, "the old ones are removed"


def test_at_most_a_tenth_of_the_partition_is_left_out(user: Site, lab: Lab) -> None:
    for bad in (node(lab, 5), node(lab, 6)):
        fail_twice(user, bad)
    exclude = plan(user).partition("--exclude=")[2]
    assert exclude == f'"{node(lab, 6)}"'


def test_a_program_that_crashes_three_times_on_a_node_accuses_nobody(user: Site, lab: Lab) -> None:
    for _ in range(3):
        crashing = user.rank("fails_as.py", "--nodelist", node(lab, 7), arguments=("exception",))
        assert user.wait_state(crashing, *ENDED)["state"] == "FAILED"
    assert not remembered(user) and "leaving out" not in plan(user)


def test_ten_clean_runs_exclude_nothing(user: Site) -> None:
    jobs = [user.rank("says_hello.sh") for _ in range(10)]
    for job in jobs:
        user.wait_state(job, "COMPLETED")
    assert not remembered(user) and "leaving out" not in plan(user)


def test_a_requeue_that_kills_the_supervisor_accuses_nobody(user: Site, lab: Lab) -> None:
    job = user.rank("ignores_term.sh", "--requeue")
    until(job.start, LATE, "it has not begun")
    assert lab.run(["scontrol", "requeue", job.id]).returncode == 0
    start_now(lab, job)
    until(lambda: len(job.attempts()) == 2 and job.start(), LATE, job.err.read_text)
    assert not (job.attempts()[0] / "end.json").exists(), "SIGKILL came first"
    assert not remembered(user)


def crash(lab: Lab, name: str) -> None:
    """Everything on a node dies at once."""
    kill_pids(pids_in_netns(os.stat(f"/run/netns/{name}").st_ino))


def lost(user: Site, lab: Lab) -> list[str]:
    """The nodes that the user's runs have lost."""
    found = load(state_folder(user), user.state("last")["cluster"], time.time())
    return [name for name, failures in found.items() if [one.kind for one in failures] == [LOST]]


@pytest.mark.parametrize("options", [("--no-requeue",), ("--requeue",)], ids=["the run ends", "the run is requeued"])
@pytest.mark.parametrize("place", [0, 1], ids=["the first node", "another node"])
def test_a_lost_node_is_remembered(user: Site, lab: Lab, place: int, options: tuple[str, ...]) -> None:
    shape = ("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "1")
    job = user.submit(*shape, *options, "--", str(SCRIPTS / "sleeps.sh"))
    ranks = until(job.start, LATE, "it has not begun")["ranks"]
    (name,) = (entry["node"] for entry in ranks if entry["rank"] == place)
    try:
        crash(lab, name)
        lab.wait_job(job.id, "NODE_FAIL", "PENDING", "FAILED", timeout=LATE)
        if "--requeue" in options:
            start_now(lab, job)
            until(lambda: len(job.attempts()) == 2, LATE, job.err.read_text)
        until(lambda: lost(user, lab) == [name], LATE, lambda: f"{remembered(user)}, {user.state(job)}", pause=1)
    finally:
        user.close()
        lab.reset()
