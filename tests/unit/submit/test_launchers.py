"""A launcher typed after -- becomes clusterrun's own options exactly, or is refused with the line to type."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.spec import Command
from clusterrun.submit import accelerate_yaml
from clusterrun.submit.job_python import JobPython
from clusterrun.submit.request import resolve_spec
from tests.support.typed_lines import became, load, make_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("project"))


def test_accelerates_other_commands_train_nothing(project: Path) -> None:
    with pytest.raises(RequestError, match="`accelerate config` does not start a training run") as error:
        load(project, "accelerate config --config_file accelerate_config.yaml")
    assert error.value.hint.endswith(": clusterrun render --gpus-per-node 4 --accelerate-config")
    with pytest.raises(RequestError, match="`accelerate env` does not start a training run") as error:
        load(project, "accelerate env")
    assert error.value.hint == "run this command without clusterrun: accelerate env"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torchrun --nnodes 2 --nproc_per_node 4 train.py", "--nodes 2 --gpus-per-node 4 -- train.py"),
        ("torchrun --nproc-per-node 4 --standalone -m pkg.train", "--gpus-per-node 4 -- -m pkg.train"),
        ("torchrun --nnodes '$SLURM_NNODES' --nproc_per_node gpu train.py", "-- train.py"),
        ("torchrun --nnodes=2:2 --max-restarts 0 --tee 0 train.py", "--nodes 2 -- train.py"),
        ("torchrun --no-python /bin/true", "-- /bin/true"),
        ("python /opt/bin/torchrun --nproc-per-node 2 train.py", "--gpus-per-node 2 -- train.py"),
        ("nohup torchrun --nproc-per-node 2 train.py", "--gpus-per-node 2 -- train.py"),
        ("-m torch.distributed.launch --nproc_per_node 2 old.py",
         "--gpus-per-node 2 -- old.py '--local_rank={local_rank}'"),
        ("-m torch.distributed.launch --nproc_per_node 2 --use-env old.py", "--gpus-per-node 2 -- old.py"),
        ("-m torch.distributed.launch -m pkg.train 1", "-- -m pkg.train '--local-rank={local_rank}' 1"),
        ("accelerate launch --num_processes 8 --num-machines 2 train.py", "--nodes 2 --gpus-per-node 4 -- train.py"),
        (
            "accelerate launch --cpu --num_processes 4 train.py",
            "--gpus-per-node 0 --tasks-per-node 4 --env ACCELERATE_USE_CPU=true -- train.py",
        ),
        (
            "accelerate launch --config_file cpu.yaml train.py",
            "--nodes 1 --gpus-per-node 0 --tasks-per-node 2 --env ACCELERATE_MIXED_PRECISION=bf16 "
            "--env ACCELERATE_USE_CPU=true -- train.py",
        ),
        (
            "accelerate launch --config_file dynamo.yaml --mixed_precision no --num_processes 4 train.py",
            "--nodes 1 --gpus-per-node 4 --env ACCELERATE_MIXED_PRECISION=no --env ACCELERATE_DYNAMO_BACKEND=INDUCTOR "
            "--env ACCELERATE_DYNAMO_MODE=max-autotune -- train.py",
        ),
        ("accelerate launch --gradient_accumulation_steps 4 train.py", "-- train.py"),
        ("srun -N2 --ntasks-per-node=4 --gres gpu:4 python train.py", "--nodes 2 --gpus-per-node 4 -- train.py"),
        ("srun -N2 -n8 --gpus-per-task=1 -l python -u train.py", "--nodes 2 --gpus-per-node 4 -- train.py"),
        ("srun -n 8 --gres=gpu:4 python train.py", "--nodes 2 --gpus-per-node 4 -- train.py"),
        ("srun -n2 -c4 -t 1:00:00 train.py",
         "--gpus-per-node 0 --tasks-per-node 2 --cpus-per-task 4 --time 1:00:00 -- train.py"),
        (
            "srun -N2 --ntasks-per-node=1 --gres=gpu:a100:4 --export=ALL,A=1 --exclusive train.py",
            "--nodes 2 --tasks-per-node 1 --gres gpu:a100:4 --env A=1 --sbatch-arg=--exclusive -- train.py",
        ),
        (
            "deepspeed --num_gpus 4 --num_nodes 2 train.py --deepspeed ds.json",
            "--nodes 2 --gpus-per-node 4 -- train.py '--local_rank={local_rank}' --deepspeed ds.json",
        ),
        ("deepspeed --include localhost:0,1 --no_local_rank train.py", "--nodes 1 --gpus-per-node 2 -- train.py"),
        (
            "fabric run --devices 2 --precision bf16-mixed train.py --lr 1 --num-nodes 2 -- --devices 9",
            "--nodes 2 --gpus-per-node 2 --env LT_PRECISION=bf16-mixed --env LT_CLI_USED=1 --env LT_NUM_NODES=2 "
            "--env LT_DEVICES=2 -- train.py --lr 1 --devices 9",
        ),
        (
            "lightning run model --accelerator=cpu --devices=4 train.py",
            "--gpus-per-node 0 --tasks-per-node 4 --env LT_ACCELERATOR=cpu --env LT_CLI_USED=1 --env LT_NUM_NODES=1 "
            "--env LT_DEVICES=4 -- train.py",
        ),
    ],
)  # fmt: skip
def test_launchers_are_translated(project: Path, line: str, expected: str) -> None:
    assert became(load(project, line)) == f"clusterrun submit {expected}"


TORCHRUN_ON_NODES = (
    "--nnodes $NNODES --node-rank $NODE_RANK --nproc-per-node $NPROC_PER_NODE"
    " --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
)
ACCELERATE_ON_NODES = (
    "--num_machines $NNODES --machine_rank $NODE_RANK --num_processes $((NNODES * NPROC_PER_NODE))"
    " --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT --deepspeed_multinode_launcher standard"
)


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("torchrun --nnodes 2 --nproc_per_node 4 --max-restarts 3 train.py", "--max-restarts of torchrun",
         "--nodes 2 --gpus-per-node 4 --launcher torchrun --max-restarts 3 -- train.py"),
        ("torchrun --nproc_per_node 4 -t 3 train.py", "--tee of torchrun is not supported",
         "--gpus-per-node 4 -- train.py"),
        ("torchrun --nnodes 1:4 --nproc_per_node 4 train.py", "1:4 is a range",
         "--nodes 1 --gpus-per-node 4 -- train.py"),
        ("torchrun --nproc_per_node 4 --virtual-local-rank train.py", "--virtual-local-rank of torchrun",
         "--gpus-per-node 4 --launcher none -- torchrun --nproc_per_node 4 --virtual-local-rank train.py"),
        ("accelerate launch --config_file fsdp.yaml train.py", "distributed_type FSDP in fsdp.yaml",
         "--nodes 2 --gpus-per-node 4 --launcher accelerate --accelerate-config fsdp.yaml -- train.py"),
        ("accelerate launch --use_fsdp --num_processes 4 train.py", "--use_fsdp of accelerate launch",
         "--gpus-per-node 4 --launcher none -- accelerate launch --use_fsdp --num_processes 4 train.py"),
        ("accelerate launch --use_deepspeed --num_processes 8 --num_machines 2 train.py", "--use_deepspeed",
         "--nodes 2 --gpus-per-node 4 --launcher none -- bash -c"
         f" 'accelerate launch {ACCELERATE_ON_NODES} --use_deepspeed train.py'"),
        ("accelerate launch --config_file fsdp.yaml --fsdp_offload_params true train.py", "FSDP in fsdp.yaml",
         "--nodes 2 --gpus-per-node 4 --launcher none -- bash -c"
         f" 'accelerate launch {ACCELERATE_ON_NODES} --config_file fsdp.yaml --fsdp_offload_params true train.py'"),
        ("NCCL_DEBUG=INFO MASTER_PORT=1 torchrun --nproc_per_node 2 --numa-binding=node train.py", "--numa-binding",
         "--gpus-per-node 2 --launcher none --env NCCL_DEBUG=INFO -- torchrun --nproc_per_node 2 --numa-binding=node"
         " train.py"),
        ("NCCL_DEBUG=INFO accelerate launch --config_file fsdp.yaml train.py", "distributed_type FSDP",
         "--nodes 2 --gpus-per-node 4 --launcher accelerate --accelerate-config fsdp.yaml --env NCCL_DEBUG=INFO"
         " -- train.py"),
        ("NCCL_DEBUG=INFO uv run torchrun --nproc_per_node 2 train.py", "the uv command starts torchrun",
         "--gpus-per-node 2 --launcher none --env NCCL_DEBUG=INFO -- uv run torchrun --nproc_per_node 2 train.py"),
        ("A=1 srun -N2 -n2 --gres=gpu:4 bash ranked.sh a", "ranked.sh starts torchrun",
         "--nodes 2 --gpus-per-node 4 --launcher none --env A=1 -- bash ranked.sh a"),
        ("mpirun -np 8 -x A=1 python train.py --lr 1", "mpirun starts the ranks of a node itself",
         "--gpus-per-node N -- python train.py --lr 1"),
        ("horovodrun -np 4 python train.py", "horovodrun starts the ranks of a node itself",
         "--launcher none -- horovodrun -np 4 python train.py"),
        ("composer -n 2 train.py cfg.yaml", "composer starts the ranks", "--gpus-per-node N -- train.py cfg.yaml"),
        ("srun -N2 --ntasks-per-node=1 --gres=gpu:a100:4 torchrun --nproc_per_node 4 train.py",
         "srun around torchrun is not needed", "--nodes 2 --gres gpu:a100:4 -- train.py"),
        ("srun -N2 -n2 --gpus-per-node=4 llamafactory-cli train x.yaml", "srun would start llamafactory-cli train once",
         "--nodes 2 --gpus-per-node 4 --launcher none --env FORCE_TORCHRUN=1 -- llamafactory-cli train x.yaml"),
        ("srun -N2 -D /data train.py", "--chdir of srun",
         "--nodes 2 --gpus-per-node 0 -- train.py"),
        ("uv run torchrun --nproc_per_node 2 train.py", "the uv command starts torchrun",
         "--gpus-per-node 2 --launcher none -- uv run torchrun --nproc_per_node 2 train.py"),
        ("srun -N2 ./launch_multigpu.sh", "launch_multigpu.sh starts torchrun",
         "--nodes 2 --gpus-per-node 4 --env NCCL_DEBUG=INFO -- sft_multigpu_training.py"),
        ("sbatch torchrun.sbatch", "the command below leaves out lines 3, 4, 7",
         "--nodes 4 --gpus-per-node 1 -- train.py 50 10"),
        ("sbatch -N2 -n2 --export A=1 one.sbatch", "since clusterrun submits the job itself",
         '--nodes 2 --tasks-per-node 1 --time 60 --gres gpu:a100:2 --env A=1 -- train.py --out "$SCRATCH/x"'),
        ("sbatch parts.sbatch", "since clusterrun submits the job itself",
         "--nodes 2 --gpus-per-node 4 -- train.py --lr 1"),
        ("sbatch exported.sbatch", "since clusterrun submits the job itself",
         "--nodes 2 --gpus-per-node 4 -- train.py"),
        ("sbatch nothing.sbatch", "no line of the script starts the training",
         "--nodes 2 --gpus-per-node 0 -- train.py"),
        ("sbatch --wrap 'srun python train.py' -N2 --ntasks-per-node=4 --gres=gpu:4", "`sbatch --wrap` is not",
         "--nodes 2 --gpus-per-node 4 -- train.py"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_refused_with_the_line(project: Path, line: str, message: str, hint: str) -> None:
    with pytest.raises(RequestError) as error:
        load(project, line)
    assert message in error.value.message
    assert error.value.hint == f"clusterrun submit {hint}"


@pytest.mark.parametrize(
    ("line", "starter", "hint"),
    [
        ("bash shifted.sh 2", "torchrun", "--gpus-per-node 2 -- train.py"),
        ("env NCCL_DEBUG=INFO bash shifted.sh 2", "torchrun", "--gpus-per-node 2 --env NCCL_DEBUG=INFO -- train.py"),
        ("nohup bash shifted.sh 2", "torchrun", "--gpus-per-node 2 -- train.py"),
        ("time ./shifted.sh 2", "torchrun", "--gpus-per-node 2 -- train.py"),
        ("srun --ntasks-per-node=1 bash launch_multigpu.sh", "torchrun",
         "--gpus-per-node 4 --env NCCL_DEBUG=INFO -- sft_multigpu_training.py"),
        ("bash -c 'torchrun --nproc_per_node 2 train.py'", "torchrun", "--gpus-per-node 2 -- train.py"),
        ("./checked.sh a", "torchrun", "--gpus-per-node 2 --launcher none -- ./checked.sh a"),
        ("bash -e counted.sh", "torchrun", "--launcher none -- bash -e counted.sh"),
        ("./twice.sh", "torchrun", "--gpus-per-node 2 --launcher none -- ./twice.sh"),
        ("./moved.sh", "torchrun", "--gpus-per-node 2 --launcher none -- ./moved.sh"),
        ("./stays.sh", "torchrun", "--gpus-per-node 2 -- train.py"),
        ("./shifted.sh 2 a", "torchrun", "--gpus-per-node 2 -- train.py a"),
        ("./precision.sh", "accelerate launch", "--gpus-per-node 2 --launcher none -- ./precision.sh"),
        ("./secret.sh", "torchrun", "--gpus-per-node 2 --launcher none -- ./secret.sh"),
        ("./shebang a 'b c'", "torchrun", "--gpus-per-node 2 -- train.py a 'b c'"),
    ],
)  # fmt: skip
def test_a_script_that_starts_ranks_runs_once_on_one_node_and_is_refused_on_two(
    project: Path, line: str, starter: str, hint: str
) -> None:
    request = load(project, line)
    (notice,) = [notice for notice in request.notices if "so it runs once, with all GPUs of the job" in notice]
    assert f" starts {starter}, so" in notice and isinstance(request.work, Command)
    assert shlex.split(notice.partition("   (")[0])[-2:] == ["--", *shlex.split(line)][-2:]
    assert request.values["launcher"].value == "none"
    gpus = request.values.get("gpus-per-node")
    assert (gpus and gpus.value) == next((int(word) for word in hint.split()[1:2] if word.isdigit()), None)
    with pytest.raises(RequestError) as error:
        load(project, line, nodes=2, independent=True)
    assert f" starts {starter}, but" in error.value.message or "separate groups of ranks" in error.value.message
    assert hint.partition(" -- ")[2] in error.value.hint


def test_a_script_runs_once_with_the_typed_shape_whatever_its_line_says(project: Path, tmp_path: Path) -> None:
    values = load(project, "./launch_multigpu.sh", gpus_per_node=2, nodes=1).values
    assert [values[name].value for name in ("nodes", "gpus-per-node", "launcher")] == [1, 2, "none"]
    make_project(tmp_path)
    (tmp_path / "clusterrun.toml").write_text("nodes = 4\ngpus-per-node = 8\n")
    values = load(tmp_path, "./launch_multigpu.sh").values
    assert [values[name].value for name in ("nodes", "gpus-per-node", "launcher")] == [1, 4, "none"]
    assert "launcher" not in load(project, "./plain.sh", gpus_per_node=2).values, "it starts no ranks"
    assert load(project, "./twice.sh", launcher="srun").values["launcher"].value == "srun"


@pytest.mark.parametrize(
    ("line", "flags", "message"),
    [
        ("torchrun --nnodes 2 train.py", {"nodes": 3}, "--nodes is 3, but --nnodes of torchrun is 2"),
        ("torchrun --nproc_per_node 4 train.py", {"gpus_per_node": 8}, "--gpus-per-node is 8, but --nproc_per_node"),
        ("torchrun --nproc_per_node 4 train.py", {"gres": "gpu:2"}, "--gres is 2, but --nproc_per_node"),
        ("accelerate launch --cpu train.py", {"gpus_per_node": 2}, "--gpus-per-node is 2, but --cpu"),
        ("srun -t 5 train.py", {"time": "10"}, "--time is 10, but --time of srun is 5"),
        ("A=1 torchrun train.py", {"env": {"A": "2"}}, "--env of torchrun is {'A': '1'}"),
        ("srun -n 8 train.py", {"nodes": 3}, "8 ranks are not a multiple of 3"),
        ("accelerate launch --num_processes 7 --num_machines 2 train.py", {}, "7 ranks are not a multiple of 2"),
        ("srun -N2 torchrun --nnodes 3 train.py", {}, "--nodes of srun is 2, but --nnodes of torchrun is 3"),
        ("srun -N2 --ntasks-per-node=4 torchrun --nnodes 2 train.py", {}, "more than one torchrun per node"),
        ("srun -N2 --ntasks-per-gpu=2 accelerate launch train.py", {"gpus_per_node": 2}, "of srun is 4"),
        ("torchrun --nproc_per_node many train.py", {}, "not a number: 'many'"),
        ("torchrun --nproc_per_node", {}, "--nproc_per_node needs a value"),
        ("torchrun --nproc_per_node 4", {}, "torchrun: no script or program"),
        ("deepspeed --num_gpus 4", {}, "deepspeed: no script or program"),
        ("torchrun --bogus 3 train.py", {}, "option not recognized: --bogus"),
        ("accelerate launch --config_file none.yaml train.py", {}, "none.yaml: no such file"),
        ("accelerate launch --config_file train.py train.py", {}, "not an accelerate configuration"),
        ("accelerate launch --config_file broken.py train.py", {}, "not an accelerate configuration"),
        ("accelerate launch --config_file text.yaml train.py", {}, "text.yaml cannot be parsed by"),
        ("./token.sh", {"nodes": 2}, "the launch command in ./token.sh: found what looks like a Hugging Face token"),
        ("torchrun --tee 3 train.py 'a\nb'", {}, "a newline is not allowed"),
        ("sbatch gone.sh", {}, "no such script: gone.sh"),
    ],
)  # fmt: skip
def test_contradictions_and_errors(project: Path, line: str, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as error:
        load(project, line, **flags)
    assert message in error.value.message


def test_no_nodes_for_a_number_of_ranks_is_refused(project: Path) -> None:
    request = load(project, "srun -n 8 train.py", nodes=0)
    with pytest.raises(RequestError, match="--nodes must be at least 1, not 0"):
        resolve_spec(request, has_gpus=False, local=False)


@pytest.mark.parametrize(
    ("line", "flags", "expected"),
    [
        ("torchrun --nproc_per_node 4 train.py", {"nodes": 2}, "--nodes 2 --gpus-per-node 4"),
        ("torchrun --nproc_per_node 4 train.py", {"gpus_per_node": 0}, "--gpus-per-node 0 --tasks-per-node 4"),
        ("torchrun --nproc_per_node 4 train.py", {"gres": "gpu:a100:4"}, "--gres gpu:a100:4"),
        ("torchrun --nproc_per_node 4 train.py", {"gpus_per_node": 8, "tasks_per_node": 4},
         "--gpus-per-node 8 --tasks-per-node 4"),
        ("srun -n 8 train.py", {"gpus_per_node": 4}, "--nodes 2 --gpus-per-node 4"),
        ("accelerate launch train.py", {"gpus_per_node": 0, "tasks_per_node": 2},
         "--gpus-per-node 0 --tasks-per-node 2 --env ACCELERATE_USE_CPU=true"),
    ],
)  # fmt: skip
def test_typed_options_complete_a_line(project: Path, line: str, flags: dict[str, Any], expected: str) -> None:
    assert became(load(project, line, **flags)) == f"clusterrun submit {expected} -- train.py"


def test_variables_before_a_program_become_options(project: Path) -> None:
    request = load(project, "NCCL_DEBUG=INFO CUDA_VISIBLE_DEVICES=0 python train.py", env={"A": "1"})
    assert request.values["env"].value == {"A": "1", "NCCL_DEBUG": "INFO"}
    assert "environment variables before the program are passed as: --env NCCL_DEBUG=INFO" in request.notices


def test_the_notice_keeps_the_typed_variables_beside_those_of_the_line(project: Path) -> None:
    request = load(project, "NCCL_DEBUG=INFO torchrun --nproc_per_node 2 train.py", env={"A": "1"})
    assert became(request) == "clusterrun submit --gpus-per-node 2 --env A=1 --env NCCL_DEBUG=INFO -- train.py"


@pytest.mark.parametrize("launcher", ["none", "torchrun"])
def test_variables_before_a_program_become_options_under_every_launcher(project: Path, launcher: str) -> None:
    line = "A=1 ./plain.sh" if launcher == "none" else "A=1 train.py"
    assert load(project, line, launcher=launcher).values["env"].value == {"A": "1"}


def test_variables_that_clusterrun_sets_are_ignored(project: Path) -> None:
    request = load(project, "CUDA_VISIBLE_DEVICES=2,3 NCCL_DEBUG=INFO python train.py")
    assert request.values["env"].value == {"NCCL_DEBUG": "INFO"}
    assert "ignoring CUDA_VISIBLE_DEVICES: set by the scheduler or by clusterrun" in request.notices


def test_variables_alone_are_no_program(project: Path) -> None:
    with pytest.raises(RequestError, match="no such script: A=1"):
        load(project, "A=1")


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "message", "detail"),
    [
        (BOMB, "cannot be parsed by", "aliases (*NAME) are not supported"),
        ("a: 1\nb: [1,\nc: }", "cannot be parsed by", "line 3: "),
        ("a: 1\n" * 20_000, "larger than 64 kB", ""),
        ("[" * 3_000, "cannot be parsed by", ""),
    ],
)
def test_a_configuration_that_is_no_configuration_costs_seconds_and_one_line(
    tmp_path: Path, text: str, message: str, detail: str
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(RequestError) as error:
        accelerate_yaml.load(path, "x.yaml", JobPython(sys.executable), os.environ)
    assert message in error.value.message
    assert error.value.detail.startswith(detail) and len(error.value.detail.splitlines()) < 2
