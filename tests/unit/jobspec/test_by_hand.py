"""A job without clusterrun: torchrun's lines for each node, and a YAML that accelerate itself reads."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.by_hand import accelerate_yaml, node_commands
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Command, JobSpec, Module, Script, Task, Work, build_spec
from tests.support.command_desk import Desk, refused

START = "/py -m torch.distributed.run"


def spec(work: Work, **options: Any) -> JobSpec:
    values = {name.replace("_", "-"): Value(value, f"--{name}") for name, value in options.items()}
    return build_spec({"python": Value("/py", "--python"), **values}, work)


def lines(work: Work, **options: Any) -> list[str]:
    return node_commands(spec(work, **options), Path("/my work"), Path("/worker.py")).splitlines()


def test_one_line_per_node_with_one_address() -> None:
    found = lines(Script("/p/train.py", ("--lr", "1 e")), nodes=2, gpus_per_node=4, env={"A": "b c"}, setup=["load x"])
    assert found == [
        "# on every node; set MASTER_ADDR to an address where all nodes can reach node 0",
        "export MASTER_ADDR=ADDRESS_OF_NODE_0",
        "cd '/my work'",
        "export A='b c'",
        "load x",
        "# on node 0",
        f"{START} --nnodes 2 --nproc-per-node 4 --node-rank 0"
        " --master-addr \"$MASTER_ADDR\" --master-port 29500 /p/train.py --lr '1 e'",
        "# on node 1",
        f"{START} --nnodes 2 --nproc-per-node 4 --node-rank 1"
        " --master-addr \"$MASTER_ADDR\" --master-port 29500 /p/train.py --lr '1 e'",
    ]


@pytest.mark.parametrize(
    ("work", "program"),
    [
        (Script("/p/t.py", ("a",)), "/p/t.py a"),
        (Module("pkg.train", ("a",)), "-m pkg.train a"),
        (Command("/bin/x", ("a",)), "--no-python /bin/x a"),
        (Task("lm", (("steps", 3),)), "/worker.py task lm steps=3"),
    ],
)
def test_one_node_needs_no_address(work: Work, program: str) -> None:
    assert lines(work, gpus_per_node=2) == ["cd '/my work'", f"{START} --standalone --nproc-per-node 2 {program}"]


def test_port_and_restarts_are_those_of_the_job() -> None:
    last = lines(Script("/t.py"), nodes=2, gpus_per_node=1, master_port=2345, launcher="torchrun", max_restarts=3)[-1]
    words = shlex.split(last)
    assert words[words.index("--master-port") + 1] == "2345" and words[words.index("--max-restarts") + 1] == "3"
    assert words[-1] == "/t.py"


def test_what_torchrun_cannot_start_is_refused() -> None:
    with pytest.raises(RequestError, match=r"does not replace \{rank\}") as caught:
        lines(Script("/t.py", ("--out", "x{rank}")), gpus_per_node=2)
    assert caught.value.hint == "in the script, read RANK from the environment"
    with pytest.raises(RequestError, match=r"does not replace \{node_rank\}") as caught:
        lines(Script("/t.py", ("--node", "{node_rank}")), gpus_per_node=2)
    assert caught.value.hint == "in the script, read GROUP_RANK from the environment"
    with pytest.raises(RequestError, match="does not support --launcher deepspeed"):
        lines(Script("/t.py"), gpus_per_node=2, launcher="deepspeed")


@pytest.mark.parametrize(
    ("work", "options", "expected"),
    [
        (Script("/t.py"), {"nodes": 2, "gpus_per_node": 4}, ("MULTI_GPU", 2, 8, "no", False, "ADDRESS_OF_NODE_0")),
        (Script("/t.py"), {"gres": "gpu:4"}, ("MULTI_GPU", 1, 4, "no", False, None)),
        (Task("lm"), {"gpus_per_node": 2}, ("MULTI_GPU", 1, 2, "bf16", False, None)),
        (Task("lm", (("precision", "fp32"),)), {"gpus_per_node": 2}, ("MULTI_GPU", 1, 2, "no", False, None)),
        (Script("/t.py"), {"gpus_per_node": 1, "env": {"ACCELERATE_MIXED_PRECISION": "fp16"}},
         ("NO", 1, 1, "fp16", False, None)),
        (Task("lm"), {"gpus_per_node": 0, "tasks_per_node": 2}, ("MULTI_CPU", 1, 2, "no", True, None)),
    ],
)  # fmt: skip
def test_accelerate_reads_the_yaml_with_the_shape_of_the_job(
    tmp_path: Path, work: Work, options: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    loader = pytest.importorskip("accelerate.commands.config.config_args")
    path = tmp_path / "c.yaml"
    path.write_text(accelerate_yaml(spec(work, **options)))
    found = loader.load_config_from_file(str(path))
    assert (
        found.distributed_type.value, found.num_machines, found.num_processes, found.mixed_precision, found.use_cpu,
        found.main_process_ip,
    ) == expected  # fmt: skip
    assert found.machine_rank == 0 and found.main_process_port == 29500


SHAPE = ("--nodes", "2", "--gpus-per-node", "4")


def test_render_prints_them_instead_of_the_script(desk: Desk) -> None:
    said = desk.type("render", *SHAPE, "--per-node-commands", "--", "train.py")
    assert said.status == 0 and said.out.count("torch.distributed.run") == 2 and "#SBATCH" not in said.out
    said = desk.type("render", "--accelerate-config", *SHAPE, "--", "train.py")
    assert said.out.startswith("compute_environment: LOCAL_MACHINE\n") and "num_processes: 8\n" in said.out
    said = desk.type("render", "--tasks-per-node", "2", "--gpus-per-node", "0", "--accelerate-config", "--", "train.py")
    assert "on CPUs, `accelerate launch` starts only one process" in said.err


def test_accelerate_config_still_takes_a_file(desk: Desk) -> None:
    said = desk.type(
        "render", *SHAPE, "--launcher", "accelerate", "--accelerate-config", "c.yaml", "--", "train.py"
    )  # fmt: skip
    assert f"--config {desk.project}/c.yaml" in said.out
    line, _ = refused(desk, "submit", "--accelerate-config")
    assert line == "option '--accelerate-config' requires an argument"
