"""Why a job waits: the evidence of limits, nodes and partitions, and the whole, over recorded answers of Slurm."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.scheduler.slurm.limits import LimitScope
from clusterrun.scheduler.slurm.reasons import Starts, find_reason
from clusterrun.scheduler.slurm.sacctmgr import Association
from clusterrun.why import pending
from clusterrun.why.pending import limits, nodes, partition_rules
from clusterrun.why.pending.facts import PendingFacts
from tests.support.recorded_queue import NOW, asking, facts, judged, status

# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_users_limit_in_a_qos_its_use_and_its_holders() -> None:
    here = judged("21").here
    assert here[0] == "QOS tight allows 2 gres/gpu per user (MaxTRESPerUser); 2 gres/gpu in use"
    assert here[1] == "this job requests 4 gres/gpu"
    assert here[3].startswith("counted toward this limit: job 3 (2 gres/gpu, ends within ")


def test_a_job_that_asks_for_more_than_the_whole_limit_does_not_wait_for_others() -> None:
    found = judged("21")
    never = "the job cannot start even after all other jobs have ended"
    assert found.here[2] == f"this request alone exceeds the limit: {never}"
    assert found.starts is Starts.YOU
    less = pending.explain_facts(asking("21", TRES="cpu=1,node=1,gres/gpu=1"), status("21"))
    assert less.starts is Starts.ALONE and not any("more than the limit" in line for line in less.here)


def test_the_other_qos_of_the_user_are_where_it_can_go() -> None:
    rows = [Association("physics", "", ("normal", "tight"), ""), Association("chem", "", ("big",), "")]
    smaller = replace(asking("21", TRES="cpu=1,node=1,gres/gpu=1"), associations=rows)
    assert pending.explain_facts(smaller, status("21")).do == (
        "wait for the jobs that count toward this limit to end, or use another QOS:",
        "scontrol update JobId=21 QOS=normal",
    )
    assert judged("21", associations=rows).do[0].startswith("request less (run `clusterrun cancel 21`")
    moved = limits.limit_evidence(replace(facts("5", associations=rows), reason=find_reason("AssocGrpCpuLimit")))
    assert moved.do[-1] == "scontrol update JobId=5 Account=physics"
    assert "QOS=NAME" in judged("21", associations=[]).do[0]


def test_an_accounts_limit() -> None:
    found = limits.limit_evidence(replace(facts("5"), reason=find_reason("AssocGrpCpuLimit")))
    assert found.here[0] == "account chem allows 2 cpu (GrpTRES); 2 cpu in use"
    assert found.here[1] == "this job requests 2 cpu"


def qos(field: str, value: str) -> list[LimitScope]:
    return [LimitScope(kind="qos", qos="tight", values={field: value})]


@pytest.mark.parametrize(
    ("reason", "field", "value", "line", "command"),
    [
        ("QOSMaxWallDurationPerJobLimit", "MaxWallPJ", "60",
         "QOS tight allows 1:00:00 per job (MaxWallDurationPerJob)",
         "scontrol update JobId=21 TimeLimit=1:00:00"),
        ("QOSMaxCpuMinutesPerJobLimit", "MaxTRESMinsPJ", "cpu=600",
         "QOS tight allows 600 minutes of cpu per job (MaxTRESMinsPerJob)",
         "scontrol update JobId=21 TimeLimit=10:00:00"),
        ("QOSMaxMemoryPerJob", "MaxTRESPJ", "cpu=8,mem=2048",
         "QOS tight allows 2G mem per job (MaxTRESPerJob)", None),
        ("QOSMaxCpuPerNode", "MaxTRESPN", "cpu=2", "QOS tight allows 2 cpu per node (MaxTRESPerNode)", None),
        ("QOSMinCpuNotSatisfied", "MinTRESPJ", "cpu=4",
         "QOS tight requires at least 4 cpu per job (MinTRESPerJob)", None),
        ("QOSGrpJobsLimit", "GrpJobs", "1(1)", "QOS tight allows 1 running job (GrpJobs); 1 running now", None),
        ("QOSGrpGRESRunMinutes", "GrpTRESRunMins", "gres/gpu=100(90)",
         "QOS tight allows 100 minutes of gres/gpu (GrpTRESRunMins); 90 minutes of gres/gpu in use", None),
    ],
)  # fmt: skip
def test_each_kind_of_limit(reason: str, field: str, value: str, line: str, command: str | None) -> None:
    found = limits.limit_evidence(replace(facts("21"), reason=find_reason(reason), scopes=qos(field, value)))
    assert found.here[0] == line
    assert found.do == ((command,) if command else ())


def test_a_share_of_the_account_in_a_qos_does_not_hide_the_accounts_parents() -> None:
    job = facts("21")
    scopes = [
        LimitScope(kind="association", account="dept", values={"GrpJobs": "2(2)"}),
        LimitScope(kind="association", account=job.account, values={"ParentAccount": "dept"}),
        LimitScope(kind="qos account", qos=job.own_qos[0], account=job.account, values={"MaxJobsPA": "N(1)"}),
    ]
    found = limits.limit_evidence(replace(job, reason=find_reason("AssocGrpJobsLimit"), scopes=scopes))
    assert found.here[0] == "account dept allows 2 running jobs (GrpJobs); 2 running now"


def test_of_several_bounds_that_which_stops_the_job_is_told() -> None:
    rows = [LimitScope(kind="qos", qos=name, values={"GrpTRES": value}) for name, value in
            (("tight", "gres/gpu=64(2)"), ("part", "gres/gpu=4(2)"))]  # fmt: skip
    partitions = [{"PartitionName": facts("21").partition_names[0], "QoS": "part"}]
    asked = replace(facts("21"), reason=find_reason("QOSGrpGRES"), scopes=rows, partitions=partitions)
    found = limits.limit_evidence(asked)
    assert [line for line in found.here if line.startswith("QOS")] == [
        "QOS part allows 4 gres/gpu (GrpTRES); 2 gres/gpu in use"
    ]


def test_a_limit_that_is_not_shown_is_said_to_be_unseen() -> None:
    asked = replace(facts("21"), scopes=[])
    assert limits.limit_evidence(asked).unseen == ("the limit MaxTRESPerUser of QOS tight (not visible to you)",)
    assert limits.limit_evidence(replace(asked, scopes=None)).unseen == ("the limit MaxTRESPerUser of the job's QOS",)


# -- nodes and partitions ----------------------------------------------------------------------------------------------


def test_a_node_that_is_asked_for_and_drained() -> None:
    found = judged("22")
    assert found.here[0] == "the job requests node2, which is out of service"
    assert any(line.startswith("node2 is draining: bad fan [left = 2], by root, ") for line in found.here)
    assert found.do[0] == "scontrol update JobId=22 ReqNodeList="


def test_a_reservation_that_comes_and_a_time_limit_that_ends_before_it() -> None:
    found = judged("7")
    assert found.here[0].startswith("reservation maint (MAINT,SPEC_NODES) begins at ")
    assert "1 node: node1" in found.here[0]
    minutes = (1795260600 - int(NOW)) // 60 - 1
    assert found.do[0].startswith(f"scontrol update JobId=7 TimeLimit={minutes} ")


def test_a_reservation_that_has_begun_and_one_that_is_not_shown() -> None:
    (block,) = facts("7").reservations or ()
    begun = block | {"StartTime": str(int(NOW) - 60), "EndTime": str(int(NOW) + 600)}
    found = nodes.reservations(facts("7", reservations=[begun]))
    assert "lasts until " in found.here[0] and "in 10:00; 1 node: node1" in found.here[0] and found.do == ()
    wanted = replace(asking("7", Reservation="gone"), reservations=[begun])
    assert nodes.reservations(wanted).here == (
        "reservation gone is not visible to you: it may have ended, or you may lack access",
    )
    assert nodes.reservations(replace(wanted, reservations=None)).unseen == ("the reservations",)


def test_what_is_asked_against_what_is_free() -> None:
    found = nodes.free_room(facts("7"))
    assert found.here[0] == (
        "the job requests 2 nodes, 8 GPUs, 2 CPUs, 3.91G of memory; free now in partition gpu: "
        "16 of 32 CPUs, 4 of 8 GPUs"
    )
    assert found.here[1] == "1 of 2 nodes has room for the job now (node1); the job needs 2"


def test_gpus_are_known_where_they_are_not_accounted() -> None:
    found = nodes.free_room(asking("7", TRES="cpu=2,mem=4000M,node=2", TresPerNode="gres:gpu:a100:4"))
    assert found.here[0].startswith("the job requests 2 nodes, 8 GPUs, 2 CPUs")


def test_a_time_limit_beyond_the_partitions() -> None:
    found = judged("15")
    assert found.here[0] == "partition tiny allows at most 30:00; this job requests 1:00:00"
    assert found.here[1] == "partitions that allow the job: gpu, low"
    assert found.do == ("scontrol update JobId=15 TimeLimit=30:00", "scontrol update JobId=15 Partition=gpu")
    assert found.starts is Starts.YOU


def test_more_nodes_than_the_partition_takes() -> None:
    found = judged("14")
    assert found.here[0] == "partition tiny allows at most 1 node per job; this job requests 2"
    assert found.do[0] == "scontrol update JobId=14 NumNodes=1-1" and found.starts is Starts.YOU


def test_a_node_limit_that_comes_of_nodes_that_are_out_passes_by_itself() -> None:
    known = replace(asking("22", Reason="PartitionNodeLimit"), reason=find_reason("PartitionNodeLimit"))
    found = pending.explain_facts(known, status("22", "PartitionNodeLimit"))
    assert found.starts is Starts.ALONE
    assert any("bad fan" in line for line in found.here)


def test_a_partition_that_is_down() -> None:
    down = [p | ({"State": "DOWN"} if p["PartitionName"] == "gpu" else {}) for p in facts("6").partitions or ()]
    found = partition_rules.broken_rules(replace(facts("6"), partitions=down))
    assert found.here[0] == "partition gpu is DOWN"
    assert found.do == ("scontrol update JobId=6 Partition=low",)


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_an_unknown_reason_is_shown_as_it_is() -> None:
    found = pending.explain_facts(replace(facts("7"), reason=None), status("7", "Sun[31mspots"))
    shown = dict(found.facts())
    assert shown["reason"] == ("Sun[31mspots",) and "does not recognize this reason" in shown["means"][0]
    assert found.json()["word"] is None and found.json()["starts"] is None


def test_nothing_seen_is_said_and_the_reason_still_explained() -> None:
    blind = PendingFacts(id="7", reason=find_reason("Resources"), now=NOW, unseen=("the queue (squeue: no answer)",))
    found = pending.explain_facts(blind, status("7", "Resources"))
    assert "next in line" in found.meaning and found.do
    assert "the queue (squeue: no answer)" in found.unseen and "the partition's nodes" in found.unseen


@pytest.mark.parametrize("number", ["6", "7", "9", "10", "11", "14", "15", "16", "18", "21", "22"])
def test_every_job_of_a_real_queue_is_explained(number: str) -> None:
    found = judged(number)
    lines = [line for _, lines in found.facts() for line in lines]
    assert found.reason is not None and found.here and found.do, lines
    assert not any(word in line for line in lines for word in ("None", "{", "Found("))


@pytest.mark.parametrize("lost", ["queue", "partitions", "nodes", "reservations", "licenses", "scopes", "past"])
def test_each_answer_may_be_missing(lost: str) -> None:
    for number in ("6", "7", "9", "11", "14", "15", "18", "21", "22"):
        judged(number, **{lost: None})


@given(st.dictionaries(st.sampled_from(sorted(facts("22").job)), st.text(max_size=30)))
def test_no_request_breaks_it(changes: dict[str, str]) -> None:
    for number in ("22", "21", "18", "9", "14"):
        pending.explain_facts(asking(number, **changes), status(number))


def test_an_estimate_and_the_nodes_it_names() -> None:
    start = pending.explain_facts(asking("7", StartTime=str(int(NOW) + 90), SchedNodeList="node1"), status("7"))
    line = dict(start.facts())["start"][0]
    assert line.startswith("Slurm expects the job to start on node1 at ") and line.endswith(", in 1:30")
    passed = pending.explain_facts(asking("7", StartTime=str(int(NOW) - 90)), status("7")).start_line
    assert passed.startswith("Slurm expected the job to start at ") and passed.endswith(", 1:30 ago")
    assert dict(judged("22").facts())["start"] == ("Slurm has no estimate of the start time",)
