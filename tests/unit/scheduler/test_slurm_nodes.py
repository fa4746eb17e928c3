"""Nodes, partitions, generic resources and start estimates as Slurm writes them, from 22.05 to 26.05."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.scheduler.slurm.hostlist import MOST_CHARACTERS, expand, fold
from clusterrun.scheduler.slurm.nodes import (
    OPEN,
    Node,
    Partition,
    UserContext,
    closed,
    parse_nodes,
    parse_partitions,
    parse_reason,
    tres_gpus,
)
from clusterrun.scheduler.slurm.sacctmgr import parse_qos
from clusterrun.scheduler.slurm.sbatch import No, Start, parse_test_only

NODE = """NodeName=gpu04 Arch=x86_64 CoresPerSocket=16
   CPUAlloc={cpus} CPUEfctv=16 CPUTot=16 CPULoad=1.31
   AvailableFeatures=(null)
   Gres={gres}
   GresDrain=N/A
   GresUsed={used}
   NodeAddr=198.18.1.1 NodeHostName=gpu04 Version=22.05.8
   OS=Linux 6.18 #1 SMP State=DOWN
   RealMemory=64000 AllocMem={memory} FreeMem=17414 Sockets=1 Boards=1
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu,low
   CfgTRES=cpu=16,mem=62.50G,billing=16,gres/gpu=4
   AllocTRES=cpu=2,gres/gpu=1
   Reason=bad fan, see State=IDLE [root@1795256857]
   Comment=(null)

"""


def node(state: str = "IDLE", gres: str = "gpu:4", used: str = "gpu:0", cpus: int = 0, memory: int = 0) -> Node:
    (one,) = parse_nodes(NODE.format(state=state, gres=gres, used=used, cpus=cpus, memory=memory))
    return one


@pytest.mark.parametrize(
    ("gres", "used", "free"),
    [
        ("gpu:4", "gpu:0", {"": 4}),
        ("gpu:a100:4(S:0-1)", "gpu:a100:3(IDX:0,2-3)", {"a100": 1}),
        ("gpu:4(S:0)", "gpu:4(IDX:0-3)", {"": 0}),
        ("gpu:k80:2,gpu:t4:1,mps:100", "gpu:k80:1(IDX:0),gpu:t4:0(IDX:N/A),mps:0", {"k80": 1, "t4": 1}),
        ("gpu:a100:4(S:0-1),shard:a100:16(S:0-1)", "gpu:a100:0(IDX:N/A),shard:a100:0(0/4,0/4)", {"a100": 4}),
        ("gpu:1g.10gb:7(S:0),gpu:3g.40gb:2", "gpu:1g.10gb:2(IDX:0-1),gpu:3g.40gb:0", {"1g.10gb": 5, "3g.40gb": 2}),
        ("gpu:a100:no_consume:4", "gpu:a100:0", {"a100": 4}),
        ("gpu:4", "gpu:a100:1(IDX:0)", {"": 3}),
        ("gpu:a100:2,gpu:a100:2", "gpu:a100:1", {"a100": 3}),
        ("nvme:1", "nvme:0", {"": 3}),
        ("(null)", "(null)", {"": 3}),
    ],
)  # fmt: skip
def test_gpus_of_every_spelling(gres: str, used: str, free: dict[str, int]) -> None:
    if gres in ("nvme:1", "(null)"):  # then the TRES tell, where accounting counts GPUs
        text = NODE.format(state="MIXED", gres=gres, used=used, cpus=2, memory=0).replace(f"   GresUsed={used}\n", "")
        (one,) = parse_nodes(text)
        assert dict(one.gpus_free) == free
    else:
        assert dict(node(gres=gres, used=used).gpus_free) == free


@pytest.mark.parametrize(
    ("state", "standing"),
    [
        ("IDLE", "idle"), ("MIXED", "mixed"), ("ALLOCATED", "allocated"), ("IDLE+DRAIN", "drained"),
        ("MIXED+DRAIN", "draining"), ("ALLOCATED+DRAIN+COMPLETING", "draining"), ("MIXED+COMPLETING", "mixed"),
        ("IDLE+COMPLETING", "completing"), ("DOWN*", "down"), ("DOWN*+NOT_RESPONDING", "down"),
        ("DOWN+DRAIN", "down"), ("IDLE*", "not responding"), ("IDLE+NOT_RESPONDING", "not responding"),
        ("IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING", "not responding"),
        ("IDLE+PLANNED", "planned"), ("MIXED-", "planned"), ("IDLE+RESERVED", "reserved"),
        ("IDLE+MAINTENANCE+RESERVED", "reserved"), ("IDLE+CLOUD+POWERED_DOWN", "powered down"),
        ("IDLE~", "powered down"),
        ("IDLE+CLOUD+POWERING_UP", "powered down"), ("MIXED+CLOUD+POWERING_UP", "mixed"), ("IDLE+CLOUD", "idle"),
        ("IDLE+REBOOT_REQUESTED", "rebooting"), ("IDLE+FAIL", "failing"), ("INVAL+DRAIN", "drained"),
        ("UNKNOWN", "unknown"), ("FUTURE", "future"), ("IDLE+DYNAMIC_NORM", "idle"), ("SINGING", "singing"), ("", ""),
    ],
)  # fmt: skip
def test_a_state_says_what_a_node_is_good_for(state: str, standing: str) -> None:
    one = node(state)
    assert one.standing == standing
    assert (one.gpu_free == 4) is (standing in OPEN), "only what takes a job now counts as free"


def test_gpus_behind_full_cpus_or_memory_are_idle_but_not_free() -> None:
    full = node("ALLOCATED", used="gpu:1", cpus=16)
    assert full.full == "CPUs" and full.gpu_free == 0 and dict(full.gpus_idle) == {"": 3}
    assert node("MIXED", cpus=2, memory=64000).full == "memory"


def test_a_node_is_read_whole_and_a_reason_cannot_change_its_state() -> None:
    one = node("IDLE+DRAIN", cpus=2)
    assert (one.name, one.partitions, one.state, one.cpus_used) == ("gpu04", ("gpu", "low"), "IDLE+DRAIN", 2)
    assert (one.reason, one.reason_by, one.reason_at) == ("bad fan, see State=IDLE", "root", 1795256857)


def test_use_that_slurm_does_not_tell_is_not_guessed() -> None:
    text = "NodeName=a State=MIXED Gres=gpu:4 CPUTot=8 CPUAlloc=1\n"
    (one,) = parse_nodes(text)
    assert one.gpus_used is None and one.gpu_free == 0


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Not responding [slurm@1795256857]", ("Not responding", "slurm", 1795256857)),
        ("bad [x] fan [ann@2026-11-21T01:02:03]", ("bad [x] fan", "ann", None)),
        ("no mark", ("no mark", "", None)),
        ("", ("", "", None)),
    ],
)
def test_reasons(text: str, parts: tuple[str, str, int | None]) -> None:
    assert parse_reason(text) == parts


def test_tres_types_win_over_their_sum() -> None:
    assert tres_gpus("cpu=8,gres/gpu=4,gres/gpu:a100=3,gres/gpu:h100=1") == (("a100", 3), ("h100", 1))
    assert tres_gpus("cpu=8,gres/gpu=4,gres/gpumem=80G") == (("", 4),)


PARTITION = """PartitionName=gpu
   AllowGroups=ml,root AllowAccounts=physics,chem DenyQos=tight
   AllocNodes=ALL Default=YES QoS=pq
   DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO
   MaxNodes=4 MaxTime=1-12:00:00 MinNodes=2 LLN=NO MaxCPUsPerNode=UNLIMITED
   Nodes=gpu[01-04]
   PriorityJobFactor=1 PriorityTier=10 RootOnly=NO ReqResv=YES OverSubscribe=NO
   State=UP TotalCPUs=64 TotalNodes=4 SelectTypeParameters=NONE
"""


def test_a_partition_and_whom_it_takes() -> None:
    (one,) = parse_partitions(PARTITION)
    assert (one.name, one.default, one.time_limit, one.given_time) == ("gpu", True, 129_600, 129_600)
    assert (one.min_nodes, one.max_nodes, one.qos, one.needs_reservation) == (2, 4, "pq", True)
    mine = UserContext("ann", frozenset({"ml"}), frozenset({"physics"}), frozenset({"normal", "tight"}))
    assert closed(one, mine) == ""
    assert closed(one, UserContext("ann", frozenset({"bio"}))) == "AllowGroups=ml,root"
    assert closed(one, UserContext("ann", frozenset({"ml"}), frozenset({"bio"}))) == "AllowAccounts=physics,chem"
    assert closed(one, UserContext("ann", frozenset({"ml"}), frozenset({"bio"}), above=frozenset({"physics"}))) == ""
    assert (
        closed(one, UserContext("ann", frozenset({"ml"}), frozenset({"chem"}), frozenset({"tight"}))) == "DenyQos=tight"
    )
    assert closed(one, UserContext("root")) == "", "accounts that nobody told of close nothing"
    assert closed(Partition(name="x", state="DRAIN"), mine) == "State=DRAIN"
    assert closed(Partition(name="x", root_only=True), mine) == "RootOnly=YES"


@given(st.text(alphabet=st.sampled_from("NodeName=State IDLE+DRAIN*~\n gpu:a100(4,S-1)[]@%GresUsed"), max_size=400))
def test_no_text_breaks_the_readers(text: str) -> None:
    for one in [*parse_nodes(text), *parse_nodes(f"NodeName=a Gres={text}\n State={text}\n Reason={text}")]:
        assert one.gpu_free <= one.gpu_total and one.cpus_free >= 0 and isinstance(one.standing, str)
    parse_partitions(text)
    parse_qos(text)


@given(st.text(max_size=200), st.text(max_size=20))
def test_no_answer_breaks_the_reader_of_estimates(text: str, note: str) -> None:
    assert isinstance(parse_test_only(text, note), No)
    assert isinstance(
        parse_test_only(f"{text}\nsbatch: Job 5 to start at 9 using 8 processors on nodes n1\n", ""), Start
    )


PARTS = st.tuples(
    st.sampled_from(["n", "gpu-", "r1n", ""]),
    st.integers(0, 120),
    st.sampled_from([0, 2, 3]),
    st.sampled_from(["", "-ib"]),
)


@given(st.sets(PARTS))
def test_folded_names_unfold_to_themselves(parts: set[tuple[str, int, int, str]]) -> None:
    names = {f"{before}{number:0{width}}{after}" for before, number, width, after in parts}
    assert sorted(expand(fold(names))) == sorted(names)


def test_names_fold_as_slurm_does() -> None:
    assert fold(["gpu01", "gpu02", "gpu04", "login"]) == "login,gpu[01-02,04]"
    assert fold([f"node{n}" for n in range(8, 12)]) == "node[8-11]"
    assert fold([]) == ""


JOB = "sbatch: Job 5 to start at"
ON_N4 = "using 1 processors on nodes n4 in partition gpu\n"
ANSWERS = {
    "22.05": (f"{JOB} 1795256816 using 8 processors on nodes node[1-2] in partition gpu\n",
              Start(1795256816, "node[1-2]", "gpu")),
    "26.05": (f"{JOB} 1795256816 on cluster big a {ON_N4}", Start(1795256816, "n4", "gpu")),
    "preempts": (f"{JOB} 9 {ON_N4}sbatch:   Preempts: 14,15\n", Start(9, "n4", "gpu", ("14", "15"))),
    "banner": (f"Welcome. Job 3 of the day: tea\n{JOB} 9 {ON_N4}", Start(9, "n4", "gpu")),
    "no time": (f"{JOB} Unknown {ON_N4}", Start(None, "n4", "gpu")),
}  # fmt: skip


@pytest.mark.parametrize(("stderr", "said"), ANSWERS.values(), ids=ANSWERS)
def test_an_estimate(stderr: str, said: Start) -> None:
    assert parse_test_only(stderr, "") == said


def test_refusals_and_silences() -> None:
    stderr = "sbatch: error: invalid partition specified: nope\nallocation failure: Invalid partition name specified\n"
    assert parse_test_only(stderr, "sbatch: x") == No("Invalid partition name specified")
    stderr = "sbatch: unrecognized option '--tres-per-task=cpu:2'\nTry \"sbatch --help\" for more information\n"
    assert parse_test_only(stderr, "sbatch: x") == No("unrecognized option '--tres-per-task=cpu:2'")
    stderr = "allocation failure: Socket timed out on send/recv operation\n"
    assert parse_test_only(stderr, "sbatch: x") == No("Socket timed out on send/recv operation", is_silence=True)
    assert parse_test_only("", "sbatch: timed out") == No("sbatch: timed out", is_silence=True)
    nothing = parse_test_only("a banner and nothing else\n", "")
    assert isinstance(nothing, No) and nothing.is_silence
    assert parse_test_only("sbatch: error: Invalid --begin specification\n", "x") == No("Invalid --begin specification")


def test_limits_of_a_qos_in_megabytes_and_minutes() -> None:
    text = "normal||||||||||||\ntight|5||cpu=20,gres/gpu=8,mem=62.50G|3|10|gres/gpu=4||||||2-00:00:00\nbanner\n"
    assert parse_qos(text) == {
        "normal": {},
        "tight": {
            ("GrpJobs", ""): 5, ("GrpTRES", "cpu"): 20, ("GrpTRES", "gres/gpu"): 8, ("GrpTRES", "mem"): 64000,
            ("MaxJobsPU", ""): 3, ("MaxSubmitJobsPU", ""): 10, ("MaxTRESPU", "gres/gpu"): 4, ("MaxWallPJ", ""): 2880,
        },
    }  # fmt: skip


@pytest.mark.parametrize("text", ["n[1-9]" * 5 + "x" * 100_000, "r[1-99999999]" + "x" * 100_000, "n[1-9]" * 16_000])
def test_a_list_that_multiplies_a_long_text_ends(text: str) -> None:
    assert 0 < sum(map(len, expand(text))) <= MOST_CHARACTERS + len(text)


def test_a_run_backwards_is_a_part_that_does_not_parse() -> None:
    assert expand("n[3-1],m[1-2]") == ["n[3-1]", "m1", "m2"]
