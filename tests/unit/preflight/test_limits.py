"""What recorded answers of Slurm prove about a job: never, doubtful, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.free.limits import UserLimit
from clusterrun.free.snapshot import ClusterSnapshot, _passes_limit
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Command, JobSpec
from clusterrun.preflight.limits import judge_limits, judge_maintenance, judge_refusal, judge_shell
from clusterrun.preflight.summary import cost_line
from clusterrun.scheduler.slurm.nodes import UserContext, parse_nodes, parse_partitions
from clusterrun.scheduler.slurm.sbatch import No, Start
from clusterrun.scheduler.slurm.scontrol import parse_show

NODES = "\n\n".join(
    f"NodeName=n{number} CPUAlloc=0 CPUTot=64\n   RealMemory=64000\n   Gres=gpu:a100:4\n   State=IDLE\n"
    "   Partitions=gpu,short,low"
    for number in range(1, 5)
)
PARTITIONS = """PartitionName=gpu
   Default=YES DefaultTime=04:00:00 MaxTime=UNLIMITED MaxNodes=UNLIMITED State=UP

PartitionName=short
   DefaultTime=NONE MaxTime=01:00:00 MinNodes=2 MaxNodes=3 State=UP QoS=pq

PartitionName=low
   DefaultTime=NONE MaxTime=UNLIMITED State=DOWN
"""
SEEN = ClusterSnapshot(
    nodes=tuple(parse_nodes(NODES)), partitions=tuple(parse_partitions(PARTITIONS)), me=UserContext("me"), limits=()
)
NOW = 1_800_000_000
#: scontrol show reservation of 24.11, with SLURM_TIME_FORMAT=%s
MAINTENANCE = f"""ReservationName=maint StartTime={NOW + 6 * 3600} EndTime={NOW + 10 * 3600} Duration=04:00:00
   Nodes=n[2-4] NodeCnt=3 CoreCnt=192 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES
   TRES=cpu=192
   Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null)
"""


def spec(nodes: int = 1, gpus: int | None = 4, time: int | None = None, **more: str) -> JobSpec:
    template, arguments = more.pop("template", ""), tuple(filter(None, [more.pop("argument", "")]))
    return JobSpec(
        work=Command("/bin/true"), nodes=nodes, gpus_per_node=gpus, tasks_per_node=gpus or 4, job_name="x", python="p",
        requeue=False, time_limit=time, directives=tuple(more.items()), template=template, sbatch_args=arguments,
        sources={"time": Value("x", "--time")} if time else {},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "line", "hint"),
    [
        (spec(), "", ""),
        (spec(nodes=4), "", ""),
        (spec(nodes=5), "partition gpu: the partition has only 4 nodes", "clusterrun free"),
        (spec(gpus=1000), "partition gpu: no node has 1,000 GPUs (at most 4)", "clusterrun free"),
        (spec(gpus=None, gres="gpu:h100:4"), "the partition has no GPUs of type h100",
         "on nodes of this partition, use --gres gpu:a100:4"),
        (spec(nodes=2, time=7200, partition="short"), "exceeds the partition's limit of 1:00:00", "--time 1:00:00"),
        (spec(nodes=2, time=3600, partition="short"), "", ""),
        (spec(nodes=1, time=60, partition="short"), "requires at least 2 nodes", ""),
        (spec(nodes=4, time=60, partition="short"), "allows at most 3 nodes", ""),
        (spec(nodes=4, time=60, partition="short,gpu"), "", ""),
        (spec(nodes=5, partition="short,gpu"), "; partition short: the partition allows at most 3 nodes", ""),
        (spec(nodes=5, partition="hidden"), "", ""),
        (spec(mem="900G"), "too few nodes have 900G of memory (the largest has 62.5G)", ""),
        (spec(mem="64000"), "", ""),
        (spec(mem="0"), "", ""),
        (spec(nodes=5, partition="gpu,hidden"), "", ""),
    ],
)  # fmt: skip
def test_what_a_partition_never_runs(asked: JobSpec, line: str, hint: str) -> None:
    found = judge_limits(SEEN, asked)
    assert len(found) == bool(line)
    for error in found:
        assert isinstance(error, RequestError) and line in error.message and hint in error.hint


def test_what_is_not_certain_only_warns() -> None:
    def never(seen: ClusterSnapshot, asked: JobSpec) -> list[bool]:
        return [isinstance(finding, RequestError) for finding in judge_limits(seen, asked)]

    assert never(SEEN, spec(nodes=5, template="my.j2")) == [False]
    assert never(SEEN, spec(nodes=5, argument="--partition=other")) == [False]
    assert never(SEEN, spec(nodes=5, argument="--exclusive")) == [True]
    assert never(SEEN, spec(partition="low")) == [False], "a partition that is down may come back"
    assert never(replace(SEEN, qos_flags=None), spec(nodes=5)) == [False], "accounting did not respond"
    assert never(replace(SEEN, nodes=()), spec(nodes=5)) == [], "nodes may be hidden"


def test_a_flag_of_the_qos_lifts_a_partitions_limit() -> None:
    lifted = replace(SEEN, qos_flags={"long": frozenset({"PartitionTimeLimit", "PartitionMaxNodes"})})
    asked = spec(nodes=4, time=7200, partition="short", qos="long")
    assert judge_limits(lifted, asked) == [] and judge_limits(SEEN, asked) != []


def limited(*limits: UserLimit, flags: frozenset[str] = frozenset()) -> ClusterSnapshot:
    return replace(SEEN, limits=limits, default_account="a", qos_flags={"q": flags})


def test_a_limit_of_an_account_is_a_refusal_only_if_the_whole_of_it_is_too_small() -> None:
    small = UserLimit("QOS q", "MaxTRESPU", "gres/gpu", 6, 0, qos="q")
    (one,) = judge_limits(limited(small), spec(nodes=2, qos="q"))
    assert isinstance(one, RequestError)
    assert "QOS q: 8 GPUs exceed the limit of 6; the job would never start (MaxTRESPU)" in one.message
    used = replace(small, limit=9, used=4)
    (one,) = judge_limits(limited(used), spec(nodes=2, qos="q"))
    assert isinstance(one, str) and "the limit of 9 GPUs leaves room for 5 more; the job would have to wait" in one


def test_the_first_to_set_a_limit_decides() -> None:
    account = UserLimit("account a", "GrpTRES", "gres/gpu", 6, 0, accounts=("a",))
    own = UserLimit("QOS q", "GrpTRES", "gres/gpu", 60, 0, qos="q")
    partition = UserLimit("QOS pq", "GrpTRES", "gres/gpu", 600, 0, qos="pq")
    asked = spec(nodes=2, partition="short", time=60, qos="q")
    assert [type(one) for one in judge_limits(limited(account), asked)] == [RequestError]
    assert judge_limits(limited(account, own), asked) == []
    assert judge_limits(limited(replace(own, limit=6), partition), asked) == []
    over = limited(replace(own, limit=6), partition, flags=frozenset({"OverPartQOS"}))
    assert [type(one) for one in judge_limits(over, asked)] == [RequestError]


def maintenance(asked: JobSpec, text: str = MAINTENANCE, now: float = NOW) -> list[str]:
    return list(map(str, judge_maintenance(SEEN, asked, parse_show(text), now)))


def test_maintenance_in_the_way_has_the_time_limit_that_fits_before_it() -> None:
    (line,) = maintenance(spec(nodes=2, time=12 * 3600))
    assert line.startswith("maintenance maint from ")
    assert "on 3 of 4 nodes: a job with a time limit of 12:00:00 cannot start before the maintenance ends" in line
    assert line.endswith("; a job with --time 5:55:00 fits before the maintenance")
    assert maintenance(spec(nodes=2, time=6 * 3600)) == [], "it ends in time"
    assert maintenance(spec(nodes=2)) == [], "the partition's default is 4 hours"
    assert maintenance(spec(nodes=1, time=12 * 3600)) == [], "a node is left"
    assert maintenance(spec(nodes=2, time=12 * 3600, reservation="maint")) == []
    assert maintenance(spec(nodes=2, time=12 * 3600), MAINTENANCE.replace("MAINT,", "")) == []
    assert maintenance(spec(nodes=2, time=12 * 3600), "No reservations in the system\n") == []
    assert maintenance(spec(nodes=2, time=60), now=NOW + 11 * 3600) == [], "it is over"
    (line,) = maintenance(spec(nodes=2, time=60), now=NOW + 7 * 3600)
    assert "cannot start before the maintenance ends" in line and "--time" not in line


def test_a_refusal_of_test_only_counts_unless_nodes_are_out_of_service() -> None:
    no = No("Requested node configuration is not available")
    assert isinstance(judge_refusal(SEEN, spec(), no), RequestError)
    drained = replace(SEEN, nodes=(replace(SEEN.nodes[0], state="IDLE+DRAIN"), *SEEN.nodes[1:]))
    found = judge_refusal(drained, spec(nodes=4), no)
    assert found == (
        "Slurm cannot place this job now: Requested node configuration is not available (1 of 4 nodes out of service)"
    )
    assert isinstance(judge_refusal(None, spec(), no), str), "what is out of service is unknown"
    assert isinstance(judge_refusal(None, spec(), No("Invalid feature specification")), RequestError)
    assert isinstance(judge_refusal(SEEN, spec(), No("usage: our-sbatch FILE")), str), "a site's wrapper"


def test_a_refusal_names_what_there_is() -> None:
    mine = replace(SEEN, me=UserContext("me", accounts=frozenset({"b", "a"}), qos=frozenset({"q"})))
    hints = {
        "Invalid partition name specified": "did you mean gpu? partitions: gpu, short, low",
        "Invalid account or account/partition combination specified": "your accounts: a, b",
        "Invalid qos specification": "your QOS: q",
    }
    for words, hint in hints.items():
        error = judge_refusal(mine, spec(partition="gpus"), No(words))
        assert isinstance(error, RequestError) and error.hint == hint


def test_the_cost_and_the_start_in_one_line() -> None:
    line = cost_line(SEEN, spec(nodes=2, time=12 * 3600), Start(1, "n[1-2]", "gpu"))
    assert line == "2 nodes x 4 GPUs x 12 h = 96 GPU-hours; Slurm expects the job to start now on n[1-2]"
    assert cost_line(SEEN, spec(), None) == "1 node x 4 GPUs x 4 h = 16 GPU-hours", "the partition's default"
    assert cost_line(None, spec(), None) == "1 node x 4 GPUs"
    assert cost_line(SEEN, spec(gpus=0, time=1800), None) == "1 node x 4 CPUs x 30 min = 2 CPU-hours"
    assert cost_line(SEEN, spec(time=1200), None, 3) == "3 tasks x 1 node x 4 GPUs x 20 min = 4 GPU-hours"
    long = replace(spec(nodes=2, time=60 * 86_400), total_time=100 * 86_400)
    assert cost_line(SEEN, long, None) == "2 nodes x 4 GPUs x 1,440 h x 2 starts = 23,040 GPU-hours"
    start = Start(1, "n1", "gpu", ("7",))
    assert cost_line(SEEN, spec(time=3600), start).endswith("start now on n1, preempting job 7")
    waiting = cost_line(SEEN, spec(time=3600, dependency="afterok:5"), start)
    assert waiting.endswith("the job waits for its dependency afterok:5")


def test_a_shells_limit_on_processor_time_is_named_if_the_job_would_get_it() -> None:
    (found,) = judge_shell(SEEN, spec(), 1500)
    assert isinstance(found, str) and "limits each process to 1,500 s of processor time (ulimit -t)" in found
    assert judge_shell(SEEN, spec(), -1) == []
    assert judge_shell(SEEN, spec(argument="--propagate=NONE"), 1500) == []
    assert judge_shell(replace(SEEN, passes_cpu_limit=False), spec(), 1500) == []


@pytest.mark.parametrize(
    ("config", "passed"),
    [
        ({}, True),
        ({"PropagateResourceLimits": "ALL"}, True),
        ({"PropagateResourceLimits": "NOFILE,cpu"}, True),
        ({"PropagateResourceLimits": "NONE"}, False),
        ({"PropagateResourceLimits": "NOFILE"}, False),
        ({"PropagateResourceLimitsExcept": "MEMLOCK,CPU"}, False),
        ({"PropagateResourceLimitsExcept": "MEMLOCK"}, True),
    ],
)
def test_the_configuration_says_which_limits_a_job_gets(config: dict[str, str], passed: bool) -> None:
    assert _passes_limit("CPU", config) is passed
