"""A running job that runs start in: what it has, by an answer of Slurm 22.05, and which runs fit into it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterrun.base.errors import NotDelivered, Refused
from clusterrun.scheduler import Submission
from clusterrun.scheduler.local.devices import choose
from clusterrun.scheduler.local.jobfiles import Job
from clusterrun.scheduler.slurm import allocation
from clusterrun.scheduler.slurm.allocation import Allocation, cpus_per_task, parse
from tests.support.folders import DATA

ANSWER = (DATA / "slurm" / "allocation-22.05.txt").read_text()
HAS = Allocation({"n1": 4, "n2": 4, "n3": 2}, cpus=16)


def run(**shape: int) -> Submission:
    return Submission("r", Path("/r"), "t" * 16, Path("/r/s"), Path("/"), Path("/l"), {}, in_job="8", **shape)


def refusal(answer: str, job: str = "8", uid: int = 0) -> str:
    with pytest.raises(Refused) as caught:
        parse(job, answer, uid)
    assert "--in-job none" in caught.value.hint
    return caught.value.message


def test_the_gpus_of_each_node_and_the_fewest_cpus() -> None:
    assert parse("8", ANSWER, 0) == Allocation({"node1": 2, "node2": 1}, 4)


@pytest.mark.parametrize(
    ("gres", "count"),
    [("gpu:4(IDX:0-3)", 4), ("gpu:a100:2(IDX:0,2),gpu:h100:1(IDX:3)", 3), ("gpu:1080:2(IDX:0-1)", 2), ("", 0),
     ("shard:4(0/4)", 0)],
)  # fmt: skip
def test_gpus_are_counted_by_their_gres(gres: str, count: int) -> None:
    one = re.sub(r"     Nodes=.*\n     Nodes=.*", f"     Nodes=n[1-2] CPU_IDs=0-3,6 Mem=1 GRES={gres}", ANSWER)
    assert parse("8", one, 0) == Allocation({"n1": count, "n2": count}, 5)


def test_a_jobs_name_gives_it_nothing() -> None:
    named = ANSWER.replace("JobName=no-shell", "JobName=x\n     Nodes=evil CPU_IDs=0 Mem=1 GRES=gpu:99(IDX:0)")
    assert parse("8", named, 0).gpus == {"node1": 2, "node2": 1}


def test_a_job_in_which_no_run_can_start_is_named_with_its_reason() -> None:
    assert refusal(ANSWER, uid=1000) == "job 8 belongs to root, not to you"
    assert refusal(ANSWER.replace("=RUNNING", "=PENDING")) == "job 8 has not started yet (PENDING)"
    assert refusal(ANSWER.replace("=RUNNING", "=COMPLETED")) == "job 8 has ended (COMPLETED)"
    assert refusal(ANSWER.replace("=RUNNING", "=SUSPENDED")) == "job 8 is suspended"
    assert "several components" in refusal("")
    assert "which nodes" in refusal(re.sub(r"     Nodes=.*\n", "", ANSWER))


def test_a_run_that_does_not_fit_is_refused_with_what_there_is() -> None:
    for shape, words in (
        ({"nodes": 4}, "job 8 has 3 nodes, but the run needs 4"),
        ({"gpus_per_node": 5}, "job 8 has 4 GPUs on each node, but the run needs 5"),
        ({"nodes": 3, "gpus_per_node": 3}, "job 8 has only 2 nodes with 3 GPUs, but the run needs 3"),
        ({"tasks_per_node": 17}, "job 8 has 16 CPUs on a node for this run, but its ranks need 17"),
        ({"gpus_per_node": 1, "tasks_per_node": 5}, "job 8 has 4 CPUs on a node for this run, but its ranks need 5"),
        ({"tasks_per_node": 4, "cpus_per_task": 5}, "job 8 has 16 CPUs on a node for this run, but its ranks need 20"),
    ):
        with pytest.raises(Refused) as caught:
            cpus_per_task(HAS, run(**shape))
        assert caught.value.message == words


def test_a_rank_gets_its_share_of_the_cpus_that_go_with_its_gpus() -> None:
    assert cpus_per_task(HAS, run(gpus_per_node=2, tasks_per_node=2)) == 4
    assert cpus_per_task(HAS, run(tasks_per_node=2)) == 8
    assert cpus_per_task(HAS, run(gpus_per_node=2, tasks_per_node=2, cpus_per_task=8)) == 8


def test_a_slurm_that_does_not_answer_may_be_asked_again(tmp_path: Path) -> None:
    scontrol = tmp_path / "scontrol"
    for words, kind in (("Unable to contact slurm controller", NotDelivered), ("Invalid job id specified", Refused)):
        scontrol.write_text(f"#!/bin/sh\necho 'slurm_load_jobs error: {words}' >&2\nexit 1\n")
        scontrol.chmod(0o755)
        with pytest.raises(kind):
            allocation.load("8", {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    with pytest.raises(Refused):
        allocation.load("--help", {"PATH": str(tmp_path)})


def test_a_run_takes_its_gpus_on_as_many_nodes_as_it_needs() -> None:
    slots = [f"8/n{node}/{gpu}" for node in (1, 2) for gpu in range(2)]

    def chosen(free: list[str], nodes: int, gpus: int) -> tuple[str, ...] | None:
        job = Job(token="t", run_dir="", script="", workdir="", logs="", umask=0o77, nodes=nodes, tasks_per_node=gpus,
                  gpus_per_node=gpus, time_limit=None, dependency="", submitted=0, grace=1.0, in_job="8")  # fmt: skip
        return choose(free, job)

    assert chosen(slots, 2, 1) == ("8/n1/0", "8/n2/0")
    assert chosen(slots[1:], 1, 2) == ("8/n2/0", "8/n2/1")  # node 1 has one left
    assert chosen(slots[1:], 2, 2) is None
