from __future__ import annotations

import pytest

from clusterrun.base.errors import WorkerError
from clusterrun.worker.rank.distenv import RunEnv, fill_placeholders, resolve, torch_variables

STORE = {"MASTER_ADDR": "node1", "MASTER_PORT": "12345"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "8",
    "SLURMD_NODENAME": "node2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    **STORE,
}
TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "x",
    **STORE,
}


def test_slurm_variables_give_the_rank() -> None:
    dist = resolve(SLURM)
    assert (dist.rank, dist.local_rank, dist.world_size, dist.local_world_size) == (5, 1, 8, 4)
    assert (dist.node, dist.node_rank, dist.task, dist.source) == ("node2", 1, 5, "slurm")
    assert dist.master == ("node1", 12345)


@pytest.mark.parametrize(("compressed", "node", "expected"), [("4(x2)", 0, 4), ("3(x2),2", 2, 2), ("5,3", 1, 3)])
def test_slurm_tasks_per_node_is_expanded(compressed: str, node: int, expected: int) -> None:
    environ = SLURM | {"SLURM_STEP_TASKS_PER_NODE": compressed, "SLURM_NODEID": str(node), "SLURM_LOCALID": "0"}
    assert resolve(environ).local_world_size == expected


def test_nodes_are_counted_in_the_order_of_the_ranks() -> None:
    """Slurm counts them by name, also where a host file has another order (segments)."""
    assert resolve(SLURM | {"SLURM_NODEID": "0"}).node_rank == 1


def test_without_a_map_the_world_is_shared_evenly() -> None:
    environ = {k: v for k, v in SLURM.items() if "TASKS_PER" not in k} | {"CLUSTERRUN_NODES": "2"}
    assert resolve(environ).local_world_size == 4


def test_torchrun_is_believed_only_with_its_run_id() -> None:
    assert resolve(TORCHRUN | SLURM).source == "torchrun"
    without = {k: v for k, v in TORCHRUN.items() if k != "TORCHELASTIC_RUN_ID"}
    assert resolve(without | SLURM).rank == 5
    assert resolve(without).world_size == 1


def test_under_a_launcher_per_node_the_label_is_the_task() -> None:
    assert resolve(TORCHRUN | {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}).task == 1
    assert resolve(TORCHRUN | {"SLURM_PROCID": "1", "CLUSTERRUN_NODE_NAME": "local1"}).task == 3


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"SLURM_LOCALID": "a"}, "SLURM_LOCALID must be a whole number, got 'a'"),
        ({"SLURM_PROCID": "8"}, "rank 8 is out of range for world size 8"),
        ({"MASTER_PORT": ""}, "MASTER_ADDR and MASTER_PORT are not set"),
    ],
)
def test_a_broken_environment_is_named(change: dict[str, str], word: str) -> None:
    with pytest.raises(WorkerError, match=word):
        resolve(SLURM | change)


def test_users_scripts_get_torchruns_variables() -> None:
    variables = torch_variables(resolve(SLURM), "run7")
    assert variables["RANK"] == "5" and variables["LOCAL_RANK"] == "1" and variables["GROUP_RANK"] == "1"
    assert variables["NODE_RANK"] == "1" and variables["LOCAL_WORLD_SIZE"] == "4"
    assert variables["TORCHELASTIC_USE_AGENT_STORE"] == "True" and variables["TORCHELASTIC_RUN_ID"] == "run7"
    alone = torch_variables(resolve({}), "run7")
    assert alone["WORLD_SIZE"] == "1" and alone["TORCHELASTIC_USE_AGENT_STORE"] == "False"


@pytest.mark.parametrize(
    ("given", "filled"),
    [
        ("--local_rank={local_rank}", "--local_rank=1"),
        ("{rank}/{world_size} on {node_rank}", "5/8 on 1"),
        ("{{rank}} {{ {rank} }}", "{rank} {{ 5 }}"),
        ("${rank} ${{rank}} $5", "${rank} ${{rank}} $5"),  # the shell's, OmegaConf's
        ('{"rank": 1} {} {x} {RANK} { rank } {rank:03}', '{"rank": 1} {} {x} {RANK} { rank } {rank:03}'),
        ("rank", "rank"),
    ],
)
def test_four_names_in_braces_are_filled_in(given: str, filled: str) -> None:
    assert fill_placeholders([given], resolve(SLURM)) == [filled]


def test_limits_have_defaults_and_are_checked() -> None:
    assert RunEnv.resolve({}).pg_timeout == 36_000 and RunEnv.resolve({}).join_timeout == 600
    assert RunEnv.resolve({"CLUSTERRUN_JOIN_TIMEOUT": "2.5"}).join_timeout == 2.5
    with pytest.raises(WorkerError, match="CLUSTERRUN_PG_TIMEOUT must be a positive number of seconds, got '-1'"):
        RunEnv.resolve({"CLUSTERRUN_PG_TIMEOUT": "-1"})
