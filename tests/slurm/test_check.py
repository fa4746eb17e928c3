"""`clusterrun check` on four nodes: a slow link, a wrong address and a missing GPU are named, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import net
from lab.cluster import Lab
from lab.fixtures import require_lab
from tests.support.installed_command import SCRIPTS, Site
from tests.support.nvidia_smi import NvidiaSmi, row

#: The node that the file names gets one GPU less.
PROLOG = """#!/bin/sh
[ "$SLURMD_NODENAME" != "$(cat {file})" ] || echo export CUDA_VISIBLE_DEVICES=0
"""


@pytest.fixture(scope="module")
def missing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the name of the node that lacks a GPU."""
    path = tmp_path_factory.mktemp("prolog") / "node"
    path.write_text("")
    return path


@pytest.fixture(scope="module")
def four(missing: Path) -> Iterator[Lab]:
    require_lab()
    prolog = missing.with_name("prolog.sh")
    prolog.write_text(PROLOG.format(file=missing))
    prolog.chmod(0o755)
    for folder in (*missing.parents[:3], missing):
        folder.chmod(folder.stat().st_mode | 0o755)
    with Lab(name=f"t{os.getpid()}k", gpus=2, accounting=False, settings={"TaskProlog": str(prolog)}) as lab:
        yield lab


@pytest.fixture(scope="module")
def site(four: Lab, new_site: Callable[[Lab | None], Site]) -> Site:
    return new_site(four)


def check(site: Site, *options: str, status: int, nodes: int = 4) -> dict[str, Any]:
    found: dict[str, Any] = site.json("check", "--nodes", str(nodes), "--gpus-per-node", "2", *options, status=status)
    return found


def wrong(found: dict[str, Any]) -> set[tuple[str, str]]:
    """(check, nodes) of each finding that is wrong."""
    return {(one["check"], " ".join(one["where"])) for one in found["findings"] if one["status"] != "unknown"}


def test_nodes_in_order_give_no_alarm_and_all_links_are_measured(site: Site, four: Lab) -> None:
    found = check(site, "--tasks-per-node", "1", status=0)
    assert found["ok"] and wrong(found) == set()
    pairs = {tuple(link["nodes"]) for link in found["links"] if link["kind"] == "pair"}
    assert len(pairs) == 6 and all(link["correct"] and link["busbw"] > 0 for link in found["links"])
    assert [node["node"] for node in found["nodes"]] == four.node_names
    assert all(node["gpus"] == 2 and node["clock_offset_s"] is not None for node in found["nodes"])


def test_slow_link_wrong_address_and_missing_gpu_are_named_and_nothing_else(
    site: Site, four: Lab, missing: Path
) -> None:
    _, slow, misnamed, poor = four.node_names
    names = {node: four.address(node) for node in four.node_names}
    four.slow_link(slow, "50mbit")
    net.write_hosts(four.name, names | {misnamed: names[misnamed].rpartition(".")[0] + ".99"})
    missing.write_text(poor)
    try:
        found = check(site, "--tasks-per-node", "1", status=1)
    finally:
        net.write_hosts(four.name, names)
        missing.write_text("")
        four.restore_link(slow)
    assert wrong(found) == {("links", slow), ("names", misnamed), ("devices", poor)}, found["findings"]
    texts = " ".join(one["text"] for one in found["findings"])
    assert f"{poor} has 1 of 2 GPUs (CUDA_VISIBLE_DEVICES=0)" in texts and f"network link of {slow}: " in texts
    assert f"{misnamed} resolves to " in texts


def test_connection_that_is_cut_between_two_nodes_is_named_in_time(site: Site, four: Lab) -> None:
    one, other = four.node_names[1:3]
    block = ["ip", "route", "add", "unreachable", four.address(other)]
    assert four.on_node(one, block).returncode == 0
    try:
        found = check(site, "--tasks-per-node", "1", status=1, nodes=3)
    finally:
        four.on_node(one, ["ip", "route", "del", "unreachable", four.address(other)])
    assert wrong(found) == {("links", f"{one} {other}")}, found["findings"]


# with a training after the check: local/test_check.py
def test_job_that_checks_first_runs_on_slow_links_and_not_on_a_broken_node(
    site: Site, four: Lab, missing: Path
) -> None:
    _, slow, third, poor = four.node_names
    words = ("--gpus-per-node", "2", "--tasks-per-node", "1", "--check", "--", str(SCRIPTS / "says_hello.sh"))
    four.slow_link(slow, "50mbit")
    try:
        ran = site.submit("--nodes", "3", *words)
        site.cli("wait", ran.id)
        missing.write_text(poor)
        broken = site.submit("--nodes", "2", "--nodelist", f"{third},{poor}", *words)
        site.cli("wait", broken.id, status=1)
    finally:
        missing.write_text("")
        four.restore_link(slow)
    assert f"check: differs: network link of {slow}: " in ran.err.read_text()
    assert "hello" in ran.out.read_text()
    assert f"check: broken: {poor} has 1 of 2 GPUs" in broken.err.read_text()
    assert "hello" not in broken.out.read_text()
    assert f"{poor} has 1 of 2 GPUs" in site.cli("why", broken.id).stdout


LISTENS = "import socket\nheld = socket.create_server(('', {port}))\nprint(flush=True)\ninput()"


def test_gpu_memory_and_port_of_an_ended_job_are_lines_and_the_memory_ends_a_checked_launch(
    site: Site, four: Lab, tmp_path: Path
) -> None:
    node, port = four.node_names[1], 31_999
    smi = NvidiaSmi(tmp_path / "programs")
    # in the network of the node, as if a job that Slurm has forgotten had left it there
    command = ["ip", "netns", "exec", node, sys.executable, "-c", LISTENS.format(port=port)]
    environ = {**os.environ, "SLURM_JOB_ID": "99999"}
    words = ("--nodes", "1", "--nodelist", node, "--gpus-per-node", "2", "--tasks-per-node", "1")
    words += ("--env", f"PATH={smi.folder}:{os.environ['PATH']}")
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as left:
        assert left.stdout is not None and left.stdout.readline() == b"\n"
        smi.says(row(left.pid, 40960))
        waits = ("sh", "-c", f"until grep -q 'holds 40' {site.project}/logs/*.err; do sleep 0.1; done; echo hello")
        ran = site.submit(*words, "--", *waits)
        checked = site.submit(*words, "--check", "--", str(SCRIPTS / "says_hello.sh"))
        site.cli("wait", ran.id)
        site.cli("wait", checked.id, status=1)
        left.kill()
    memory = f"{node}: process {left.pid} ("
    errors = ran.err.read_text()
    assert memory in errors and f"holds port {port}, but its job has ended; end it on {node}: kill {left.pid}" in errors
    assert "hello" in ran.out.read_text() and "hello" not in checked.out.read_text()
    assert f"check: broken: {memory}" in checked.err.read_text()
    why = site.cli("why", checked.id).stdout
    assert node in why and "holds 40.0 GiB of GPU memory" in why
