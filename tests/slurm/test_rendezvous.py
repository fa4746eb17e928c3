"""Ranks find each other, stay together and end together; the jobs run side by side, so that their waits overlap."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab import net
from lab.cluster import Lab
from tests.support.installed_command import ALLREDUCE, ONE_RANK, SCRIPTS, Job, Site, until
from tests.support.patience import HUNG

TWO_RANKS = ("--nodes", "2", "--gpus-per-node", "1")
PAUSE = 3  # seconds between the two sums of meets_its_own.py


@pytest.fixture(scope="module", autouse=True)
def late(site: Site, request: pytest.FixtureRequest) -> Job:
    """A job whose rank 0 is late: submitted before the first test, looked at by one that comes later."""
    return site.submit(*TWO_RANKS, "--", str(SCRIPTS / "rank0_is_late.py"), "15")


@pytest.fixture(scope="module")
def pair(site: Site, lab: Lab) -> list[Job]:
    """Two jobs of two ranks each on the same two nodes."""
    nodes = ",".join(lab.node_names[2:4])

    def submit(number: int) -> Job:
        return site.submit(
            *TWO_RANKS, "--nodelist", nodes,
            "--", str(SCRIPTS / "meets_its_own.py"), str(number), str(PAUSE),
        )  # fmt: skip

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(submit, (1, 1000)))


def sums(job: Job) -> list[tuple[int, int, float]]:
    """(rank, sum, when) of each sum that a rank of meets_its_own.py printed."""
    found = re.findall(r"^ *(\d+): sum (\d+) at ([\d.]+)$", job.out.read_text(), re.MULTILINE)
    return [(int(rank), int(value), float(when)) for rank, value, when in found]


def port(job: Job) -> int:
    """The rendezvous port that the batch script told."""
    match = re.search(r"rendezvous \S+:(\d+)$", job.err.read_text(), re.MULTILINE)
    assert match, job.err.read_text()
    return int(match[1])


def test_two_jobs_on_the_same_nodes_do_not_meet(site: Site, pair: list[Job]) -> None:
    def both_run() -> bool:
        return [state["state"] for state in site.json("status", *(job.id for job in pair))] == ["RUNNING", "RUNNING"]

    until(both_run, 60, lambda: "both jobs running in one answer", pause=0.3)
    for job in pair:
        site.cli("wait", job.id)
    first, second = (sums(job) for job in pair)
    assert sorted((rank, value) for rank, value, _ in first) == sorted((rank, 2) for rank in range(2) for _ in "12")
    assert sorted((rank, value) for rank, value, _ in second) == sorted((rank, 2000) for rank in range(2) for _ in "12")
    assert port(pair[0]) != port(pair[1])
    nodes = [{rank["node"] for rank in (job.start() or {})["ranks"]} for job in pair]
    assert nodes[0] == nodes[1] and len(nodes[0]) == 2


def test_script_that_opens_and_closes_its_own_group_and_exits_is_completed(site: Site) -> None:
    job = site.submit(*TWO_RANKS, "--", str(SCRIPTS / "ends_itself.py"))
    site.cli("wait", job.id)
    state = site.state(job)
    assert (state["state"], state["exit_status"]) == ("COMPLETED", 0)


def test_one_rank_that_gives_up_fails_the_job_with_its_status_and_is_named(site: Site) -> None:
    job = site.submit(*TWO_RANKS, "--", str(SCRIPTS / "one_gives_up.py"))
    ended = site.cli("wait", job.id, status=1)
    assert "rank 1 on" in ended.stderr and "failed first: exited with status 3" in ended.stderr
    state = site.state(job)
    assert (state["state"], state["outcome"], state["exit_status"]) == ("FAILED", "failed", 3)
    first = json.loads((job.attempts()[0] / "first_failure.json").read_text())
    assert (first["rank"], first["status"]) == (1, 3)


def test_job_whose_rank_0_is_late_is_completed(site: Site, late: Job) -> None:
    site.cli("wait", late.id)
    assert site.state(late)["state"] == "COMPLETED"
    assert "0: rank 0 is through\n" in late.out.read_text()


@pytest.mark.faults
def test_job_whose_rank_0_is_very_late_is_completed(site: Site) -> None:
    job = site.submit(*TWO_RANKS, "--", str(SCRIPTS / "rank0_is_late.py"), "90")
    site.cli("wait", job.id, timeout=240)
    assert site.state(job)["state"] == "COMPLETED"
    assert "0: rank 0 is through\n" in job.out.read_text()


# -- ports -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def free_ports(lab: Lab) -> Iterator[set[int]]:
    """The ports that are left on the first node while a process there holds nine of ten."""
    node = lab.node_names[0]
    holder = subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{node}", sys.executable, str(SCRIPTS / "holds_ports.py"), lab.address(node)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin and holder.stdout
    yield {int(word) for word in holder.stdout.readline().split()}
    holder.stdin.close()
    holder.wait(HUNG)


def start_many(site: Site, node: str, number: int) -> list[Job]:
    """That many one-rank jobs on a node, several at a time."""

    def start(_: int) -> Job:
        return site.submit(*ONE_RANK, "--nodelist", node, "--", str(SCRIPTS / "says_hello.sh"))

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(start, range(number)))


@pytest.mark.parametrize("number", [6, pytest.param(40, marks=pytest.mark.faults)])
def test_starts_on_a_crowded_node_find_a_free_port(site: Site, lab: Lab, free_ports: set[int], number: int) -> None:
    assert len(free_ports) < 2300
    jobs = start_many(site, lab.node_names[0], number)
    site.cli("wait", *(job.id for job in jobs), timeout=280)
    assert {port(job) for job in jobs} <= free_ports
    assert not [job.id for job in jobs if re.search("in use|EADDRINUSE", job.err.read_text() + job.out.read_text())]


def test_port_that_was_asked_for_and_is_taken_ends_the_job_naming_it(
    site: Site, lab: Lab, free_ports: set[int]
) -> None:
    taken = next(port for port in range(10_000, 32_000) if port not in free_ports)
    words = ("--nodelist", lab.node_names[0], "--master-port", str(taken), "--", str(SCRIPTS / "says_hello.sh"))
    job = site.submit(*ONE_RANK, *words)
    site.cli("wait", job.id, status=1)
    assert f"port {taken} on {lab.node_names[0]} is taken by process" in job.err.read_text()


def test_ranks_meet_at_slurms_address_if_the_first_nodes_name_leads_to_another_network(site: Site, lab: Lab) -> None:
    names = {node: lab.address(node) for node in lab.node_names}
    first, second, *_ = names
    net.write_hosts(lab.name, names | {first: "203.0.113.7"})
    try:
        job = site.submit("--nodes", "2", *ONE_RANK, "--nodelist", f"{first},{second}", "--", str(ALLREDUCE))
        site.wait_state(job, "COMPLETED", timeout=120)
    finally:
        net.write_hosts(lab.name, names)
    assert f"rendezvous {names[first]}:" in job.err.read_text() and job.out.read_text().count("sum 3") == 2
