"""Why a job waits: which nodes could take it, what each is short of, and the rules that keep it out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterrun.scheduler.slurm.nodes import Node
from clusterrun.scheduler.slurm.reasons import Starts, find_reason
from clusterrun.scheduler.slurm.sacctmgr import Association
from clusterrun.scheduler.slurm.scontrol import having, parse_features
from clusterrun.scheduler.slurm.squeue import Queued
from clusterrun.why import pending
from clusterrun.why.pending import dependencies, nodes, partition_rules, queue_position
from clusterrun.why.pending.facts import PendingFacts
from tests.support.recorded_queue import NOW, status

FULL_OF_JOBS = {"cpus_used": 16, "gpus_used": (("", 4),)}


def node(number: int, **changes: object) -> Node:
    """A node of 16 CPUs, 64,000 MB and 4 GPUs in the partitions gpu and low, idle."""
    known = {
        "name": f"n{number}", "partitions": ("gpu", "low"), "state": "MIXED", "cpus": 16, "memory": 64_000,
        "gpus": (("", 4),),
    }  # fmt: skip
    return Node(**{**known, **changes})  # type: ignore[arg-type]


def facts(*nodes: Node, reason: str = "Resources", **asked: str) -> PendingFacts:
    """A job for two nodes with 2 GPUs and 20,000 MB each, that was made before."""
    job = {
        "JobId": "7", "Partition": "gpu", "NumNodes": "2", "UserId": "ann(1001)", "Account": "physics", "QOS": "normal",
        "TRES": "cpu=2,mem=40000M,node=2,gres/gpu=4", "Reason": reason,
    }  # fmt: skip
    return PendingFacts(id="7", reason=find_reason(reason), now=NOW, job=job | asked, nodes=nodes, queue=[])


def test_a_node_without_the_memory_has_no_room_and_what_each_lacks_is_said() -> None:
    here = nodes.free_room(
        facts(node(1), node(2, memory_used=55_000), node(3, gpus_used=(("", 3),)), node(4, **FULL_OF_JOBS))
    ).here
    assert here[1:] == (
        "1 of 4 nodes has room for the job now (n1); the job needs 2",
        "not enough memory: n2",
        "not enough GPUs: n3",
        "not enough GPUs and CPUs: n4",
    )


def test_only_nodes_that_it_names_count() -> None:
    found = nodes.free_room(facts(node(1), node(2), node(3, state="IDLE+DRAIN"), NumNodes="1", ReqNodeList="n3"))
    assert found.here[0].endswith("free now on the requested nodes in partition gpu: 0 of 16 CPUs, 0 of 4 GPUs")
    assert found.here[1] == "0 of 1 node has room for the job now; the job needs 1"
    assert found.here[2].startswith("n3 is drained") and len(found.here) == 3
    more = nodes.free_room(facts(node(1), node(2), node(3), ReqNodeList="n3"))
    assert "3 of 3 nodes" in more.here[1], "fewer names than nodes: any may come to them"


def test_nodes_that_it_excludes_do_not_count() -> None:
    found = nodes.free_room(facts(node(1), node(2), node(3), ExcNodeList="n[2-3]"))
    assert found.here[1] == "1 of 1 node has room for the job now (n1); the job needs 2"


def test_a_feature_that_no_node_has() -> None:
    features = {"n1": frozenset({"a100"}), "n2": frozenset({"a100", "ib"})}
    known = replace(facts(node(1), node(2), reason="BadConstraints", Features="h100"), features=features)
    found = pending.explain_facts(known, status("7", "BadConstraints"))
    assert found.here[-1] == "no node in partition gpu has h100; available features: a100, ib"
    assert found.do[0] == "scontrol update JobId=7 Features="
    assert (
        pending.explain_facts(replace(known, reason=find_reason("Priority")), status("7", "Priority")).starts
        is Starts.YOU
    )


def test_a_feature_that_one_node_has() -> None:
    known = replace(facts(node(1), node(2), Features="ib"), features={"n1": frozenset(), "n2": frozenset({"ib"})})
    found = nodes.free_room(known)
    assert found.here[1:3] == ("1 of 2 nodes has ib (n2)", "1 of 1 node has room for the job now (n2); the job needs 2")
    assert nodes.free_room(replace(known, job=known.job | {"Features": "[a|b]*2"})).unseen == (
        "which nodes have [a|b]*2",
    )


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("a", ["x", "y"]),
        ("a&b", ["y"]),
        ("b|c", ["y", "z"]),
        ("d", []),
        ("a&b|c", None),
        ("a*2", None),
        ("(a|b)", None),
    ],
)
def test_what_a_constraint_matches(wanted: str, found: list[str] | None) -> None:
    active = {"x": "a", "y": "a,b", "z": "c", "w": "(null)"}
    features = parse_features("\n".join(f"NodeName={n} A=b\n   ActiveFeatures={a}\n" for n, a in active.items()))
    assert having(wanted, features, ["x", "y", "z", "w"]) == found


def test_a_constraint_is_no_reason_to_say_that_the_scheduler_is_late() -> None:
    late = "Slurm may not have considered this job yet"
    assert any(late in line for line in nodes.free_room(facts(node(1), node(2))).here)
    for word in ("BadConstraints", "Constraints"):
        assert not any(late in line for line in nodes.free_room(facts(node(1), node(2), reason=word)).here)


def test_a_job_whose_constraints_no_node_satisfies_now_is_not_held_and_starts_by_itself() -> None:
    found = pending.explain_facts(facts(node(1), reason="Constraints"), status("7", "Constraints"))
    assert dict(found.facts())["means"] == (
        "Too few nodes currently satisfy the job's constraints (--extra). The job starts automatically.",
    )


def test_jobs_of_another_partition_on_the_same_nodes_are_seen_to_hold_them() -> None:
    rows = [
        Queued(id="3", raw=3, state="RUNNING", user="kim", partitions=("low",), left=60, tres=(("gres/gpu", 8.0),)),
        Queued(id="4", raw=4, state="RUNNING", user="kim", partitions=("cpu",), left=30, tres=(("gres/gpu", 1.0),)),
    ]
    assert queue_position.next_ends(replace(facts(node(1), node(2)), queue=rows)).here == (
        "no job visible to you is running in partition gpu; 1 job running in partition low (same nodes); "
        "first to end, by time limit: job 3 (kim) within 1:00",
        "in use: 8 GPUs by kim",
    )


def test_memory_beyond_the_partitions() -> None:
    partition = {"PartitionName": "gpu", "MaxMemPerNode": "4000"}
    known = replace(facts(reason="MaxMemPerLimit", MinMemoryNode="8000M"), partitions=[partition])
    found = pending.explain_facts(known, status("7", "MaxMemPerLimit"))
    text = "partition gpu allows at most 4000M of memory per node (MaxMemPerNode); this job requests 8000M"
    assert found.here == (text,)
    assert found.do == ("scontrol update JobId=7 MinMemoryNode=4000",)


def test_an_account_that_the_partition_does_not_take() -> None:
    said = "Job's account not permitted to use this partition (gpu allows chem not physics)"
    partitions = [
        {"PartitionName": "gpu", "AllowAccounts": "bio,chem"},
        {"PartitionName": "low", "AllowAccounts": "ALL"},
    ]
    rows = [Association("physics", "", ("normal",), ""), Association("chem", "", ("normal",), "")]
    known = replace(facts(reason=said, StartTime=str(int(NOW) - 5)), partitions=partitions, associations=rows)
    found = pending.explain_facts(known, status("7", said))
    assert found.here[0] == "partition gpu accepts only accounts bio, chem; this job uses physics"
    assert found.do == ("scontrol update JobId=7 Account=chem", "scontrol update JobId=7 Partition=low")
    assert found.start is None, "Slurm's estimate of a job that it never starts is this moment"
    assert found.start_line == "Slurm has no estimate of the start time while the job cannot start"
    elsewhere = replace(known, partitions=[partitions[0], partitions[1] | {"DenyAccounts": "physics"}])
    assert partition_rules.broken_rules(elsewhere).do == ("scontrol update JobId=7 Account=chem",)


def test_ranks_that_are_bound_to_nodes_cannot_be_moved_to_fewer() -> None:
    partitions = [{"PartitionName": "gpu", "MaxNodes": "1"}]
    one_each = replace(facts(reason="PartitionNodeLimit", NumTasks="2"), partitions=partitions)
    assert partition_rules.broken_rules(one_each).do == ("scontrol update JobId=7 NumNodes=1-1",)
    many = replace(one_each, job=one_each.job | {"NumTasks": "8"})
    assert partition_rules.broken_rules(many).do == (
        "run `clusterrun cancel 7`, then submit the job again with --nodes 1",
    )


def test_a_list_of_nodes_is_quoted_for_the_shell() -> None:
    known = facts(node(1), node(2), node(3, state="DOWN"), ReqNodeList="n[1-3]")
    assert nodes.check_named_nodes(known).do == ("scontrol update JobId=7 ReqNodeList='n[1-2]'",)


def task(id: str, state: str, **more: object) -> Queued:
    return Queued(**{"id": id, "raw": 1, "state": state, **more})  # type: ignore[arg-type]


def test_tasks_of_an_array_that_wait_are_not_counted_as_one() -> None:
    queue = [task("18", "PENDING", reason="JobArrayTaskLimit"), task("18_0", "RUNNING"), task("18_1", "RUNNING")]
    (line,), never = dependencies.describe_conditions("afterok:18_*(unfulfilled)", queue, [])
    assert (
        line.endswith("that job has unfinished tasks: 2 RUNNING, others are pending (JobArrayTaskLimit)") and not never
    )
    again = task("18_0", "PENDING", reason="BeginTime")  # requeued: a row of its own
    (line,), _ = dependencies.describe_conditions("afterok:18_*(unfulfilled)", [queue[0], again], [])
    assert line.endswith("that job has unfinished tasks: all are pending (BeginTime, JobArrayTaskLimit)")


def test_a_task_that_has_not_begun_waits_with_its_array() -> None:
    queue = [task("18", "PENDING", reason="JobArrayTaskLimit"), task("18_0", "RUNNING")]
    (line,), _ = dependencies.describe_conditions("afterok:18_3(unfulfilled)", queue, [])
    assert line.endswith("that job is PENDING (JobArrayTaskLimit)")


def test_the_minutes_after_a_begin() -> None:
    (line,), _ = dependencies.describe_conditions("after:5+10(unfulfilled)", [task("5", "RUNNING", start=int(NOW))], [])
    assert "to start or be cancelled, plus 10 minutes; that job has been RUNNING since " in line
    assert "so this condition will be met at " in line


def test_commands_are_for_the_array_that_a_task_stands_for() -> None:
    known = replace(facts(reason="JobHeldUser"), id="30")
    assert pending.explain_facts(known, status("7", "JobHeldUser")).do == ("scontrol release 30",)
    unknown = replace(facts(reason="QOSUsageThreshold"), id="30")
    assert "JobId=30 QOS=NAME" in pending.explain_facts(unknown, status("7", "QOSUsageThreshold")).do[0]
