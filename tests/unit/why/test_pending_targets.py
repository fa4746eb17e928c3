"""A job is not told to go where it would wait at the next limit: over answers in the words of slurmctld."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.scheduler.slurm.limits import LimitScope
from clusterrun.scheduler.slurm.reasons import find_reason
from clusterrun.scheduler.slurm.sacctmgr import Association
from clusterrun.why.pending import limits, partition_rules
from clusterrun.why.pending.facts import PendingFacts
from tests.support.recorded_queue import asking, facts

MINE = [Association("physics", "", ("normal", "tight", "next"), ""), Association("chem", "", ("normal",), "")]


def qos(name: str, **values: str) -> LimitScope:
    return LimitScope(kind="qos", qos=name, values=values)


def account(name: str, user: str = "", **values: str) -> LimitScope:
    return LimitScope(kind="association", account=name, user=user, values=values)


def waits(reason: str, *holders: LimitScope, **asked: str) -> PendingFacts:
    """A job of account physics in QOS tight for an hour with 4 GPUs on 2 nodes, that waits for some limit."""
    usual = {"Account": "physics", "QOS": "tight", "TimeLimit": "01:00:00", "TRES": "cpu=8,mem=8000M,node=2,gres/gpu=4"}
    known = asking("21", **usual | asked)
    return replace(known, reason=find_reason(reason), scopes=holders, associations=MINE)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("MaxWallPJ", "10", "10:00 (MaxWall)"),
        ("MaxWallPJ", "60", ""),
        ("MaxTRESPJ", "gres/gpu=2,cpu=N", "2 gres/gpu (MaxTRESPerJob)"),
        ("MaxTRESPN", "gres/gpu=1", "1 gres/gpu (MaxTRESPerNode)"),
        ("MaxTRESPN", "gres/gpu=2", ""),
        ("GrpTRES", "cpu=N(3),gres/gpu=3(0)", "3 gres/gpu (GrpTRES)"),
        ("GrpTRES", "gres/gpu=4(4)", ""),
        ("GrpTRES", "mem=4096(0)", "4G mem (GrpTRES)"),
    ],
)
def test_a_qos_that_would_stop_the_job_too(field: str, value: str, words: str) -> None:
    target = qos("next", **{field: value})
    known = waits("QOSMaxJobsPerUserLimit", qos("tight"), target)
    assert limits.other_targets(known, "qos")["next"] == words
    held = LimitScope(kind="qos user", qos="tight", user=known.uid, values={"MaxJobsPU": "1(1)"})
    found = limits.limit_evidence(replace(known, scopes=[target, qos("tight"), held]))
    assert ("scontrol update JobId=21 QOS=next" in found.do) is (words == "")
    assert any(f"QOS next, which allows only {words}" in line for line in found.here) is (words != "")


def test_where_no_other_takes_it_no_move_is_offered() -> None:
    held = LimitScope(kind="qos user", qos="tight", user=waits("").uid, values={"MaxJobsPU": "1(1)"})
    blocking = [qos(name, MaxWallPJ="5") for name in ("normal", "next")]
    found = limits.limit_evidence(waits("QOSMaxJobsPerUserLimit", qos("tight"), held, *blocking))
    assert found.do == ("wait for the jobs that count toward this limit to end",)
    assert (
        found.here[-1]
        == "ruled out: QOS normal, which allows only 5:00 (MaxWall); QOS next, which allows only 5:00 (MaxWall)"
    )


def test_an_account_that_would_stop_the_job_too() -> None:
    full, small = account("physics", GrpTRES="cpu=8(8)"), account("chem", GrpTRES="cpu=4(0)")
    known = waits("AssocGrpCpuLimit", full, small)
    found = limits.limit_evidence(known)
    assert found.here[0] == "account physics allows 8 cpu (GrpTRES); 8 cpu in use", "of the other only the wall is told"
    assert found.do == ("wait for the jobs that count toward this limit to end",)
    assert "account chem, which allows only 4 cpu (GrpTRES)" in found.here[-1]
    over = replace(known, scopes=[full, small, qos("tight", GrpTRES="cpu=64(0)")])
    assert "scontrol update JobId=21 Account=chem" in limits.limit_evidence(over).do, "the QOS goes before the account"
    others = account("chem", user="kim", MaxTRESPJ="cpu=1")
    assert limits.other_targets(replace(known, scopes=[others]), "association")["chem"] == ""
    elsewhere = replace(account("chem", user=known.user, MaxTRESPJ="cpu=1"), partition="another")
    assert limits.other_targets(replace(known, scopes=[elsewhere]), "association")["chem"] == ""


def test_what_the_partitions_qos_sets_goes_before_the_qos_of_the_job() -> None:
    known = waits("QOSMaxJobsPerUserLimit", qos("next", MaxWallPJ="10"), qos("part", MaxWallPJ="600"))
    partitions = [{"PartitionName": known.partition_names[0], "QoS": "part"}]
    assert limits.other_targets(known, "qos")["next"] == "10:00 (MaxWall)"
    assert limits.other_targets(replace(known, partitions=partitions), "qos")["next"] == ""


def test_a_partition_whose_qos_would_stop_the_job_too() -> None:
    name = facts("15").partition_names[0]
    partitions = [{"PartitionName": name, "MaxTime": "30:00"}, {"PartitionName": "long", "QoS": "wide"}]
    known = replace(asking("15", TimeLimit="01:00:00"), partitions=partitions, scopes=[qos("wide", MaxWallPJ="45")])
    assert not any("Partition=" in line for line in partition_rules.broken_rules(known).do)
    free = replace(known, scopes=[qos("wide", MaxWallPJ="90")])
    assert partition_rules.broken_rules(free).do[-1] == "scontrol update JobId=15 Partition=long"


def test_a_qos_that_the_partition_takes_but_the_job_is_beyond() -> None:
    name = facts("21").partition_names[0]
    partitions = [{"PartitionName": name, "AllowQos": "normal,next"}]
    known = replace(waits("QOSNotAllowed", qos("normal", MaxWallPJ="5"), qos("next")), partitions=partitions)
    assert partition_rules.broken_rules(known).do == ("scontrol update JobId=21 QOS=next",)


@given(st.text(), st.text())
def test_no_limit_breaks_it(field: str, value: str) -> None:
    for name in ("MaxWallPJ", "GrpTRES"):
        limits.other_targets(waits("QOSGrpGRES", qos("next", **{name: f"{field}={value}"})), "qos")["next"]
