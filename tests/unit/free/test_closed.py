"""A partition is open to a job, not only to its user: by the account and the QOS that the job would have."""

from __future__ import annotations

import pytest

from clusterrun.free.shapes import Shape, why_never
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.jobspec.spec import Command, JobSpec
from clusterrun.scheduler.slurm.nodes import Node, Partition, UserContext
from clusterrun.scheduler.slurm.sacctmgr import Association

VIP = Partition(name="vip", allowed=(("Accounts", ("chem",)),))
TREE = Partition(name="tree", allowed=(("Accounts", ("science",)),))
SERVED = Partition(name="served", allowed=(("Qos", ("high",)),))
BARRED = Partition(name="barred", denied=(("Accounts", ("physics",)),))


def seen() -> ClusterSnapshot:
    """A user of the accounts physics (the default) and chem, both below science; QOS high only with chem."""
    return ClusterSnapshot(
        nodes=(Node(name="n1", partitions=("vip", "tree", "served", "barred"), state="IDLE", cpus=8, gpus=(("", 4),)),),
        partitions=(VIP, TREE, SERVED, BARRED),
        me=UserContext(
            "ann", frozenset(), frozenset({"physics", "chem"}), frozenset({"normal", "high"}), frozenset({"science"})
        ),
        associations=(
            Association("physics", "", ("normal",), "normal"),
            Association("chem", "", ("normal", "high"), "high"),
        ),
        default_account="physics",
        above={"physics": frozenset({"physics", "science"}), "chem": frozenset({"chem", "science"})},
    )


@pytest.mark.parametrize(
    ("partition", "directives", "why"),
    [
        (VIP, {}, "AllowAccounts=chem; this job's account is physics"),
        (VIP, {"account": "physics"}, "AllowAccounts=chem; this job's account is physics"),
        (VIP, {"account": "chem"}, ""),
        (TREE, {}, ""),
        (SERVED, {}, "AllowQos=high; this job's QOS is normal"),
        (SERVED, {"qos": "high"}, ""),
        (SERVED, {"account": "chem"}, ""),
        (BARRED, {}, "DenyAccounts=physics; this job's account is physics"),
        (BARRED, {"account": "chem"}, ""),
    ],
)
def test_a_partition_that_does_not_take_the_jobs_account_or_qos(
    partition: Partition, directives: dict[str, str], why: str
) -> None:
    spec = JobSpec(work=Command("/bin/true"), nodes=1, gpus_per_node=4, tasks_per_node=4, job_name="x", python="p",
                   requeue=False, directives=tuple(directives.items()))  # fmt: skip
    assert why_never(seen(), partition, spec, Shape(1, 4)) == why
    assert not seen().closed(partition), "the user may go there, with one job or another"
