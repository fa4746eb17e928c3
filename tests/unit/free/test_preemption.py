"""Partitions whose jobs leave for others': they are told as such, and chosen only where nothing else is as soon."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.free.estimate import choose_partition, soonest
from clusterrun.free.snapshot import Preemption, find_preemption
from clusterrun.free.text import format_estimates, format_summary
from clusterrun.scheduler.slurm.nodes import Node
from clusterrun.system.shell import Completed
from tests.unit.free.test_estimate import Fake, idle, load_snapshot, yes

TIERS = {"gpu": "PriorityTier=10 PreemptMode=OFF", "low": "PriorityTier=1 PreemptMode=REQUEUE Default=YES"}
NODES = [Node(name="n1", partitions=("gpu", "low"))]


def shown(mode: str = "REQUEUE", low: int = 1, high: int = 10) -> str:
    return (
        f"PartitionName=gpu\n   PriorityTier={high} PreemptMode=OFF\n\n"
        f"PartitionName=low\n   PriorityTier={low} PreemptMode={mode}\n\n"
    )


@pytest.mark.parametrize(
    ("told", "done"),
    [
        (shown(), "requeued"),
        (shown("CANCEL"), "cancelled"),
        (shown("GANG,SUSPEND"), "suspended"),
        (shown("OFF"), ""),
        (shown("GANG"), ""),
        (shown(low=10), ""),
        (shown(low=11), ""),
    ],
)
def test_whose_jobs_leave_and_how(told: str, done: str) -> None:
    assert find_preemption(told, NODES) == ({"low": Preemption(done, ("gpu",))} if done else {})


def test_a_partition_on_other_nodes_ends_no_jobs_there() -> None:
    assert find_preemption(shown(), [Node(name="n1", partitions=("gpu",)), Node(name="n2", partitions=("low",))]) == {}


def test_many_partitions_are_counted() -> None:
    assert (
        Preemption("requeued", tuple("abcde")).sentence
        == "jobs in this partition may be requeued to make room for jobs in partitions a, b, c and 2 more"
    )


@given(st.text())
def test_no_answer_breaks_it(text: str) -> None:
    find_preemption(shown(mode=text), NODES)
    find_preemption(text, NODES)


def cluster(say: object = yes) -> Fake:
    fake = Fake(idle(2, "gpu,low"), ["gpu", "low"], say)  # type: ignore[arg-type]
    fake.more = dict(TIERS)
    return fake


def test_auto_takes_the_partition_where_a_job_may_stay_where_both_start_now(tmp_path: Path) -> None:
    fake = cluster()
    placed = choose_partition(fake.context(tmp_path, partition="auto", gpus_per_node=2), "me")
    assert placed.values["partition"].value == "gpu" and len(fake.asked) == 1
    assert "jobs in this partition" not in placed.notices[0]


def test_auto_says_what_may_become_of_the_job(tmp_path: Path) -> None:
    def later_in_gpu(partition: str, shape: str) -> Completed:
        return yes(partition, shape, at=int(time.time()) + 900 * (partition == "gpu"))

    placed = choose_partition(cluster(later_in_gpu).context(tmp_path, partition="auto", gpus_per_node=2), "me")
    assert placed.values["partition"].value == "low"
    assert placed.notices[0].endswith("; jobs in this partition may be requeued to make room for jobs in partition gpu")


def test_where_others_have_the_nodes_of_the_better_one_it_is_asked_all_the_same(tmp_path: Path) -> None:
    fake = cluster()
    fake.nodes = idle(1, "low") + idle(1, "gpu,low", used=8).replace("=n1 ", "=n2 ")
    placed = choose_partition(fake.context(tmp_path, partition="auto", gpus_per_node=2), "me")
    assert [partition for partition, _ in fake.asked] == ["low", "gpu"]
    assert placed.values["partition"].value == "gpu", "it starts there now as well, by Slurm's word"


def test_free_says_it_in_the_row_and_in_the_answer(tmp_path: Path) -> None:
    fake = cluster()
    seen = load_snapshot(fake)
    (row,) = [line for line in format_summary(seen, time.time()) if line.startswith("low*")]
    assert row.endswith("2 idle; jobs in this partition may be requeued to make room for jobs in partition gpu")
    found = soonest(fake.context(tmp_path, nodes=1, gpus_per_node=4), seen)
    first, second = [line for line in format_estimates(found, time.time()) if line.startswith("  now  1x4")]
    assert "gpu" in first.split() and "jobs in this partition" not in first
    assert "low" in second.split() and second.endswith(
        "jobs in this partition may be requeued to make room for jobs in partition gpu"
    )


def test_where_another_rule_ends_jobs_the_tiers_say_nothing(tmp_path: Path) -> None:
    fake = cluster()
    asked = fake.__call__

    class ByQos(Fake):
        def __call__(self, argv: list[str], **how: object) -> Completed:
            if argv[:3] == ["scontrol", "show", "config"]:
                return Completed(0, "PreemptType             = preempt/qos\n", "")
            return asked(argv, **how)

    assert load_snapshot(ByQos(fake.nodes, fake.partitions, yes)).preempted == {}
