"""`free` and `submit --partition auto` on a real Slurm: what is said agrees with the cluster, and nothing is left."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import Lab
from tests.support.installed_command import Site, until
from tests.support.submit_tools import runs_of, wrap_sbatch

ENFORCED = {
    "AccountingStorageEnforce": "associations,limits,qos",
    # two partitions with nodes of their own, one whose time limit is short, one for an account that we do not have
    "PartitionName=gpu": "Nodes={n}[1-2] Default=YES PriorityTier=10 MaxTime=INFINITE DefaultTime=60 State=UP",
    "PartitionName=low": "Nodes={n}[3-4] PriorityTier=10 MaxTime=INFINITE DefaultTime=60 State=UP",
    "PartitionName=closed": "Nodes={n}[1-4] MaxTime=INFINITE State=UP AllowAccounts=chemistry",
}
EIGHT = ("--nodes", "2", "--gpus-per-node", "4")


@pytest.fixture(scope="module")
def busy() -> Iterator[Lab]:
    """A cluster with accounts and limits; `gpu` is full for half an hour, a node of `low` is drained."""
    from lab.fixtures import require_lab  # not at the top: pytest wants to see the plugin's import itself

    require_lab()
    name = f"t{os.getpid()}f"
    settings = {key: value.format(n=f"{name}-node") for key, value in ENFORCED.items()}
    with Lab(name=name, settings=settings) as lab:
        for words in (
            "add account chemistry", "add account science", "add account physics parent=science", "add qos tight",
            "modify qos tight set MaxTRESPerUser=gres/gpu=6 MaxWall=2-0 GrpTRES=gres/gpu=12",
            "add user root account=physics", "modify user root where account=physics set qos+=tight MaxJobs=9",
            "modify user root set DefaultAccount=physics", "modify account science set GrpTRES=gres/gpu=14",
        ):  # fmt: skip
            run(lab, "sacctmgr", "-i", *words.split())
        sbatch = ["sbatch", "--parsable", "--output=/dev/null", "-Aphysics", "--wrap=sleep 900"]
        filler = run(lab, *sbatch, "-N2", "--gpus-per-node=4", "-t30")
        one = run(lab, *sbatch, "-qtight", "-plow", f"-w{name}-node3", "-t20", "--gpus-per-node=1")
        run(lab, "scontrol", "update", f"nodename={name}-node4", "state=drain", "reason=bad fan \x1b[31m=x")
        until(lambda: run(lab, "squeue", "-h", "-tR", "-o%A").split() == sorted([filler, one]), 30)
        yield lab


def run(lab: Lab, *words: str) -> str:
    done = lab.run(words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def site(busy: Lab, new_site: Callable[[Lab | None], Site]) -> Site:
    made = new_site(busy)
    (made.project / "train.py").write_text("print('hello')\n")
    return made


@pytest.fixture(autouse=True)
def nothing_left(busy: Lab, site: Site) -> Iterator[None]:
    """No question makes a job or a record."""
    before = run(busy, "squeue", "-h", "-o%A"), len(runs_of(site))
    yield
    assert (run(busy, "squeue", "-h", "-o%A"), len(runs_of(site))) == before


def by(rows: list[dict[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in rows}


def test_partitions_count_what_jobs_have_left(site: Site) -> None:
    rows = by(site.json("free")["partitions"], "partition")
    assert (rows["gpu"]["free"], rows["gpu"]["total"], rows["gpu"]["nodes"]) == (0, 8, {"mixed": 2})
    # four on the drained node and one in use are not free
    assert (rows["low"]["free"], rows["low"]["total"], rows["low"]["nodes"]) == (3, 8, {"mixed": 1, "drained": 1})
    assert rows["gpu"]["default"] and not rows["low"]["default"]
    assert rows["short"]["time_limit"] == 60
    assert rows["closed"]["closed"] == "AllowAccounts=chemistry" and rows["low"]["closed"] == ""


def test_a_drained_node_says_why_and_by_whom_and_nothing_else_reaches_the_terminal(busy: Lab, site: Site) -> None:
    said = site.cli("free")
    (line,) = [line for line in said.stdout.splitlines() if "bad fan" in line]
    assert line.split()[:2] == [f"{busy.name}-node4", "drained"] and "(root, since today " in line
    assert "\x1b" not in said.stdout and "\\x1b[31m=x" in line
    assert all(len(line) <= 100 for line in said.stdout.splitlines())


def test_limits_tell_what_is_left(site: Site) -> None:
    limits = {(row["by"], row["name"], row["tres"]): row for row in site.json("free")["limits"]}
    assert limits["QOS tight", "MaxTRESPU", "gres/gpu"]["left"] == 5
    assert limits["QOS tight", "GrpTRES", "gres/gpu"]["left"] == 11
    assert limits["account science", "GrpTRES", "gres/gpu"]["left"] == 5, "of an account above mine"
    assert limits["you in account physics", "MaxJobs", ""]["left"] == 7
    assert limits["QOS tight", "MaxWallPJ", ""]["limit"] == 2 * 1440


def test_one_partition_by_name(site: Site) -> None:
    found = site.json("free", "--partition", "low")
    assert list(by(found["partitions"], "partition")) == ["low"]
    assert sum(len(row["names"]) for row in found["nodes"]) == 2
    said = site.cli("free", "--partition", "lwo", status=2)
    assert "no such partition: 'lwo'" in said.stderr and "did you mean low?" in said.stderr


def test_shapes_are_asked_of_each_partition(busy: Lab, site: Site) -> None:
    began = time.time()
    found = site.json("free", "--nodes", "1", "--gpus-per-node", "2", "--time", "10", "--", "train.py", "--lr", "1 4")
    options = {(row["partition"], row["nodes"], row["gpus_per_node"]): row for row in found["options"]}
    now = options["low", 1, 2]
    assert began - 60 < now["start"] < time.time() + 60
    assert found["options"][0] == now and now["node_list"] == f"{busy.name}-node3"
    filled_until = datetime.fromisoformat(run(busy, "squeue", "-h", "-pgpu", "-tR", "-o%e")).timestamp()
    assert abs(options["gpu", 2, 1]["start"] - filled_until) <= 60, "when the job that fills it ends"
    words = shlex.split(now["command"])
    assert words == shlex.split(
        "clusterrun submit --nodes 1 --gpus-per-node 2 --time 10 --partition low -- train.py --lr '1 4'"
    )
    refused = {(row["partition"], row["shape"]): row["reason"] for row in found["refused"]}
    assert refused["short", "1x2"] == "the job's time limit exceeds the partition's limit of 1:00"
    assert refused["closed", "1x2"] == "AllowAccounts=chemistry"
    assert "not available" in refused["low", "2x1"], "Slurm knows that one of the two is drained"


def test_a_limit_that_the_estimate_leaves_out_is_told_and_true(busy: Lab, site: Site) -> None:
    asked = ("--qos", "tight", *EIGHT, "--partition", "gpu")
    said = site.cli("free", *asked, "--", "true")
    assert "QOS tight: 8 GPUs exceed the limit of 6; the job would never start (MaxTRESPU)" in said.stdout
    assert "account science" not in said.stdout, "the QOS sets this limit too, and comes first"
    said = site.cli("free", *EIGHT, "--partition", "gpu", "--", "true")
    assert (
        "account science: the limit of 14 GPUs leaves room for 5 more; the job would have to wait (GrpTRES)"
        in said.stdout
    )
    assert site.json("free", "--gpus-per-node", "2", "--", "true")["beyond_limits"] == []
    job = run(
        busy, "sbatch", "--parsable", "-o/dev/null", "-qtight", "-pgpu", "-N2", "--gpus-per-node=4", "--wrap=true"
    )
    try:
        until(lambda: "QOSMax" in run(busy, "squeue", "-h", "-j", job, "-o%r"), 20)
    finally:
        run(busy, "scancel", job)
    until(lambda: job not in run(busy, "squeue", "-h", "-o%A").split(), 20)


def test_what_no_partition_takes(site: Site) -> None:
    said = site.cli("free", "--nodes", "5", "--gpus-per-node", "3", status=3)
    assert "no partition accepts this job" in said.stdout and "the partition has only 2 nodes" in said.stdout
    assert "Traceback" not in said.stderr


def test_slurms_own_refusal_is_said_once(site: Site) -> None:
    said = site.cli("free", "--gpus-per-node", "1", "--constraint", "nosuch", status=3)
    assert said.stdout.count("Invalid feature specification") == 1


def test_the_words_of_a_wrong_shape(site: Site) -> None:
    assert "--nodes must be at least 1" in site.cli("free", "--nodes", "0", status=2).stderr
    said = site.cli("free", "--gpus-per-node", "9", status=None)
    assert "no node has 9 GPUs (at most 4)" in said.stdout
    assert "hint: clusterrun free --nodes 2 --gpus-per-node 4" in site.cli("free", "2x4", status=2).stderr
    assert "low is a partition: clusterrun free --partition low" in site.cli("free", "low", status=2).stderr


def test_auto_is_refused_where_no_partition_takes_it(site: Site) -> None:
    said = site.cli("submit", "--partition", "auto", "--nodes", "7", "--", "train.py", status=2)
    assert "no partition accepts this job" in said.stderr and "low" in said.stderr


def test_auto_submits_nothing_where_slurm_does_not_answer(busy: Lab, site: Site) -> None:
    words = "sbatch: error: Socket timed out on send/recv operation"
    path = wrap_sbatch(site.home, f'echo "{words}" >&2; exit 1', site.env["PATH"], estimates=True)
    said = site.cli("submit", "--partition", "auto", "--", "train.py", status=3, env={"PATH": path})
    assert "nothing was submitted" in said.stderr and "Socket timed out" in said.stderr


def test_render_asks_too(site: Site) -> None:
    said = site.cli("render", "--partition", "auto", "--gpus-per-node", "2", "--time", "10", "--", "train.py")
    assert '#SBATCH --partition="low"' in said.stdout and "partition low: " in said.stderr


def test_auto_lands_where_it_starts_soonest(busy: Lab, new_site: Callable[[Lab | None], Site], template: Path) -> None:
    site = new_site(busy)
    (site.project / "clusterrun.toml").write_text('partition = "auto"\n')
    words = ("--gpus-per-node", "2", "--time", "10", "--template", str(template), "--", "sleep", "60")
    job = site.submit(*words)
    state = site.wait_state(job, "RUNNING", "COMPLETED")
    assert (state["partition"], state["nodes"]) == ("low", f"{busy.name}-node3")
    value, source = state["sources"]["partition"].values()
    assert value == "low" and source == "clusterrun.toml: auto, earliest start (Slurm's estimate): now"
    until(lambda: site.state(job)["state"] == "COMPLETED", 60, pause=0.5)


def test_a_typed_partition_wins_over_auto(busy: Lab, new_site: Callable[[Lab | None], Site]) -> None:
    site = new_site(busy)
    (site.project / "clusterrun.toml").write_text('partition = "auto"\n')
    (site.project / "train.py").write_text("")
    said = site.cli("render", "--partition", "gpu", "--", "train.py")
    assert '#SBATCH --partition="gpu"' in said.stdout and "estimate" not in said.stderr


def test_without_accounting_that_is_said_once(lab_no_accounting: Lab, new_site: Callable[[Lab | None], Site]) -> None:
    site = new_site(lab_no_accounting)
    said = site.cli("free")
    assert said.stderr.count("has no accounting") == 1 and "your limits" not in said.stdout
    found = site.json("free")
    assert found["limits"] is None
    assert by(found["partitions"], "partition")["gpu"]["total"] == 16
    starts = site.json("free", *EIGHT, "--partition", "gpu", "--", "true")["options"]
    assert {(row["nodes"], row["gpus_per_node"]) for row in starts} == {(2, 4), (4, 2)}


def test_a_partition_whose_jobs_leave_for_others_is_told_as_such(
    lab_no_accounting: Lab, new_site: Callable[[Lab | None], Site]
) -> None:
    site = new_site(lab_no_accounting)
    rows = by(site.json("free")["partitions"], "partition")
    assert rows["low"]["preempted"] == {"done": "requeued", "by": ["gpu", "short"]}
    assert rows["gpu"]["preempted"] is None
    options = by(site.json("free", "--gpus-per-node", "4", "--time", "10", "--", "true")["options"], "partition")
    assert options["low"]["preempted"]["done"] == "requeued" and options["gpu"]["preempted"] is None
    said = site.cli("render", "--partition", "auto", "--gpus-per-node", "4", "--time", "10", "--", "true")
    assert '#SBATCH --partition="gpu"' in said.stdout and "jobs in this partition" not in said.stderr
