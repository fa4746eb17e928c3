"""What `free` shows of clusters of every kind: sums that add up, few lines, nothing that acts on a terminal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.free.account_limits import exceeded_limits
from clusterrun.free.limits import UserLimit, limits_of
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.free.summary import node_rows, partition_sums
from clusterrun.free.text import MOST_ROWS, align, format_failures, format_summary
from clusterrun.jobspec.spec import Command, JobSpec
from clusterrun.run_folder.node_failures import LOST, NodeFailure
from clusterrun.scheduler.slurm.limits import parse_limits
from clusterrun.scheduler.slurm.nodes import Node, Partition, UserContext
from clusterrun.scheduler.slurm.sacctmgr import Association

NOW = 1_795_256_857


def gpu(number: int, used: int = 0, **changes: Any) -> Node:
    values: dict[str, Any] = {
        "name": f"gpu{number:02}", "partitions": ("gpu", "low"), "state": "MIXED" if used else "IDLE", "cpus": 64,
        "cpus_used": used * 8, "gpus": (("a100", 8),), "gpus_used": (("a100", used),),
    }  # fmt: skip
    return Node(**(values | changes))


def seen(*nodes: Node, **changes: Any) -> ClusterSnapshot:
    partitions = (Partition(name="gpu", default=True), Partition(name="low"), Partition(name="cpu"))
    return ClusterSnapshot(**({"nodes": nodes, "partitions": partitions, "me": UserContext("ann")} | changes))


def lines_of(what: ClusterSnapshot) -> list[str]:
    return format_summary(what, NOW)


def test_nodes_that_failed_have_a_line_each() -> None:
    failed = [NodeFailure("n3", NOW - 60, LOST, "", str(job), f"{job}.0.0") for job in range(5, 10)]
    assert format_failures({}, NOW) == []
    _, title, line = format_failures({"n3": failed}, NOW)
    assert "2 hardware failures" in title and line.startswith("  n3  5 hardware failures in 24 h: node lost, job 7, ")


def test_types_of_gpus_are_counted_apart() -> None:
    h100 = gpu(9, gpus=(("h100", 4),), gpus_used=(("h100", 1),))
    lines = lines_of(seen(gpu(1), gpu(2, 3), h100))
    at = next(i for i, line in enumerate(lines) if line.startswith("gpu*"))
    assert lines[at].split()[:4] == ["gpu*", "16", "20", "GPUs"]
    assert [line.split() for line in lines[at + 1 : at + 3]] == [["13", "16", "a100"], ["3", "4", "h100"]]


def test_a_partition_without_gpus_counts_cpus() -> None:
    node = Node(name="c1", partitions=("cpu",), state="MIXED", cpus=64, cpus_used=60)
    (row,) = [row for row in partition_sums(seen(gpu(1), node)) if row.partition.name == "cpu"]
    assert (row.unit, row.free, row.total) == ("CPUs", 4, 64)
    assert any("4 of 64 CPUs" in line for line in lines_of(seen(node)))


def test_nodes_alike_are_one_row_and_full_ones_none() -> None:
    rows = node_rows([*(gpu(n) for n in (1, 2, 3)), gpu(4, 8, state="ALLOCATED"), gpu(5, 2)])
    assert [(row.folded, row.free) for row in rows] == [("gpu[01-03]", 8), ("gpu05", 6), ("gpu04", 0)]
    text = "\n".join(lines_of(seen(gpu(1), gpu(4, 8, state="ALLOCATED"))))
    assert "gpu01" in text and "gpu04" not in text


def test_gpus_that_no_job_can_reach_are_told_not_counted() -> None:
    lines = lines_of(seen(gpu(1, 2, state="ALLOCATED", cpus_used=64)))
    assert any(line.split()[:3] == ["gpu*", "0", "8"] for line in lines)
    assert any("6 idle, but no CPUs left" in line for line in lines)


def test_drained_nodes_say_why_whoever_marked_them_together_once() -> None:
    out = [gpu(n, n, state="MIXED+DRAIN", reason="fan", reason_by="ops", reason_at=NOW - 60 - n) for n in (1, 2, 3)]
    (line,) = [line for line in lines_of(seen(gpu(7), *out)) if "fan" in line]
    assert line.split()[:2] == ["gpu[01-03]", "draining"] and "(ops, since today " in line


def test_nodes_that_sleep_are_free_later_not_now() -> None:
    lines = lines_of(seen(gpu(1, state="IDLE+CLOUD+POWERED_DOWN")))
    assert any(line.split()[:3] == ["gpu*", "0", "8"] for line in lines)
    assert any(line.startswith("powered down") for line in lines)


def test_use_that_is_not_told_is_said() -> None:
    text = "\n".join(lines_of(seen(gpu(1, gpus_used=None, state="MIXED"))))
    assert "(usage of 1 node unknown)" in text


def test_a_partition_for_others_stands_last_and_says_so() -> None:
    closed = Partition(name="vip", allowed=(("Groups", ("vip",)),))
    what = seen(gpu(1, partitions=("vip", "gpu")), partitions=(closed, Partition(name="gpu")))
    assert [row.partition.name for row in partition_sums(what)] == ["gpu", "vip"]
    assert any("closed to you: AllowGroups=vip" in line for line in lines_of(what))


def test_a_cluster_of_thousands_fits_a_screen() -> None:
    nodes = [gpu(n, n % 8, reason=f"fault {n}" if n % 40 == 0 else "", state="IDLE+DRAIN" if n % 40 == 0 else "MIXED")
             for n in range(4000)]  # fmt: skip
    lines = lines_of(seen(*nodes))
    assert len(lines) < 2 * MOST_ROWS + 20 and max(map(len, lines)) < 100
    assert any("more nodes" in line for line in lines)


def test_an_empty_cluster_is_no_error() -> None:
    assert lines_of(seen(partitions=())) == ["no partitions found"]


def test_limits_are_told_with_what_is_left() -> None:
    limits = (UserLimit("QOS a", "MaxTRESPU", "gres/gpu", 8, 6), UserLimit("QOS a", "MaxWallPJ", "", 2880),
              UserLimit("account b", "GrpTRES", "gres/gpu:a100", 4, 9))  # fmt: skip
    text = lines_of(seen(limits=limits))
    assert any(line.split() == "QOS a your GPUs (MaxTRESPU) 6 of 8 used 2 left".split() for line in text)
    assert any(line.split() == "QOS a time limit (MaxWallPJ) 2-00:00:00".split() for line in text)
    assert any("GPUs a100, in total" in line and line.endswith("0 left") for line in text), "never below nothing"
    assert "no limits apply to you, your accounts or your QOS" in lines_of(seen(limits=()))


def test_a_limit_on_each_account_is_told_for_each_of_mine() -> None:
    holders = parse_limits(
        "ClusterName=c Account=a UserName=ann(1) Partition= ID=5\n    MaxJobs=\n"
        "ClusterName=c Account=b UserName=ann(1) Partition= ID=6\n    MaxJobs=\n"
        "QOS=q(2)\n    GrpJobs=N(3)\n    Account Limits\n      a\n        MaxTRESPA=gres/gpu=8(3)\n"
        "      other\n        MaxTRESPA=gres/gpu=8(8)\n    User Limits\n        No Users\n"
    )
    found = limits_of(holders, {"q": {("MaxTRESPA", "gres/gpu"): 8.0}}, "ann", 1, {"q": "QOS q"})
    assert {(one.by, one.left, one.accounts) for one in found} == {
        ("QOS q, account a", 5.0, ("a",)), ("QOS q, account b", 8.0, ("b",)),
    }  # fmt: skip


def test_a_qos_that_i_have_not_used_is_all_left() -> None:
    holders = parse_limits(
        "QOS=tight(2)\n    GrpTRES=gres/gpu=8(3)\n    User Limits\n      7\n        MaxJobsPU=3(2)\n"
    )
    by_qos = {"tight": {("MaxTRESPU", "gres/gpu"): 4.0, ("MaxJobsPU", ""): 3.0, ("GrpTRES", "gres/gpu"): 8.0}}
    found = {(one.name, one.left) for one in limits_of(holders, by_qos, "ann", 1000, {"tight": "QOS tight"})}
    assert found == {("MaxTRESPU", 4.0), ("MaxJobsPU", 3.0), ("GrpTRES", 5.0)}, "another user's use is not mine"
    silent = {(one.name, one.left) for one in limits_of([], by_qos, "ann", 1000, {"tight": "QOS tight"})}
    assert silent == {("MaxTRESPU", None), ("MaxJobsPU", None), ("GrpTRES", None)}, "nobody said what is used"


@pytest.mark.parametrize(
    ("limit", "directives", "words"),
    [
        (UserLimit("QOS q", "MaxTRESPU", "gres/gpu", 6, 0, qos="q"), {"qos": "q"}, "exceed the limit of 6"),
        (UserLimit("QOS q", "MaxTRESPU", "gres/gpu", 9, 4, qos="q"), {"qos": "q"}, "of 9 GPUs leaves room for 5 more"),
        (UserLimit("QOS q", "MaxTRESPJ", "gres/gpu", 8, None, qos="q"), {"qos": "q"}, ""),
        (UserLimit("QOS q", "MaxTRESPU", "gres/gpu", 6, 0, qos="q"), {"qos": "other"}, ""),
        (UserLimit("QOS q", "MaxTRESPU", "gres/gpu", 6, 0, qos="q"), {}, "exceed the limit of 6"),
        (UserLimit("QOS pq", "MaxTRESPU", "gres/gpu", 6, 0, qos="pq"), {"qos": "other"}, "exceed the limit of 6"),
        (UserLimit("account up", "GrpTRES", "gres/gpu:h100", 6, 0, accounts=("a",)), {}, ""),
        (UserLimit("account up", "GrpTRES", "gres/gpu:a100", 6, 0, accounts=("a",)), {}, "exceed the limit of 6"),
        (UserLimit("account up", "GrpTRES", "gres/gpu", 6, 0, accounts=("a",)), {"account": "b"}, ""),
        (UserLimit("QOS q", "MaxWallPJ", "", 60, qos="q"), {"qos": "q"}, "time limit exceeds the maximum of"),
        (UserLimit("QOS q", "MaxWallPJ", "", 120, qos="q"), {"qos": "q"}, ""),
        (UserLimit("account up", "GrpTRES", "cpu", 6, 0, accounts=("a",)), {}, "8 CPUs exceed the limit of 6"),
        (UserLimit("account up", "GrpTRES", "cpu", 16, 9, accounts=("a",)), {}, "of 16 CPUs leaves room for 7 more"),
        (UserLimit("account up", "GrpTRES", "cpu", 16, 8, accounts=("a",)), {}, ""),
        (UserLimit("QOS q", "MaxTRESPU", "node", 1, 0, qos="q"), {"qos": "q"}, "2 nodes exceed the limit of 1"),
        (UserLimit("QOS q", "MaxTRESPU", "mem", 1, 0, qos="q"), {"qos": "q"}, ""),
        (UserLimit("QOS q", "MaxJobsPU", "", 3, 3, qos="q"), {"qos": "q"}, "have to wait"),
        (UserLimit("QOS q", "MaxSubmitJobsPU", "", 3, 3, qos="q"), {"qos": "q"}, "reject the job"),
        (UserLimit("QOS q", "MaxJobsPU", "", 3, None, qos="q"), {"qos": "q"}, ""),
    ],
)
def test_limits_in_a_jobs_way(limit: UserLimit, directives: dict[str, str], words: str) -> None:
    what = seen(
        limits=(limit,), default_account="a", associations=(Association("a", "", ("q",), "q"),),
        partitions=(Partition(name="gpu", qos="pq"),),
    )  # fmt: skip
    requested = (("gres", "gpu:a100:4"), *directives.items())
    spec = JobSpec(work=Command("/bin/true"), nodes=2, gpus_per_node=4, tasks_per_node=4, job_name="x", python="p",
                   requeue=False, time_limit=7200, directives=requested)  # fmt: skip
    lines = exceeded_limits(what, spec, ["gpu"])
    assert len(lines) == bool(words) and all(words in line for line, _ in lines)


@given(st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=5))
def test_no_cell_reaches_the_terminal_raw(rows: list[tuple[str, str]]) -> None:
    lines = align(rows)
    assert len(lines) == len(rows)
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for line in lines for char in line)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from(["IDLE", "MIXED", "MIXED+DRAIN", "DOWN*", "X"])), max_size=30)
)
def test_rows_and_partitions_agree(parts: list[tuple[int, str]]) -> None:
    what = seen(*(gpu(n, used, state=state) for n, (used, state) in enumerate(parts)))
    (row,) = [row for row in partition_sums(what) if row.partition.name == "gpu"]
    rows = node_rows(what.nodes)
    assert row.free == sum(one.free * len(one.names) for one in rows) <= row.total
    assert sum(number for _, number in row.standings) == len(parts) == sum(len(one.names) for one in rows)
    lines_of(what)
