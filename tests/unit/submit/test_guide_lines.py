"""Each line of four multi-GPU guides that starts a training, typed after --: translated, or refused with a line."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.support.command_desk import Desk, Said
from tests.support.typed_lines import make_project

FINETUNE = "finetune.py --distributed --dataset path/to/data.csv --target-cols col1 col2 --save-path ./output"
MIXER = (
    "train_mixer.py --distributed --train-data path/to/train1.csv path/to/train2.csv --val-data path/to/val.csv "
    "--save-dir ./output --batch-size 512 --formatter hisco"
)
LLADA = "train_llada_pretrained.py --data_dir shakespeare_processed --batch_size 1 --epochs 5 --fp16"
BY_HAND = "--master_addr='<master_node_ip>' --master_port=29500"
ALONE = "--nnodes=1 --node_rank=0 --master_addr=localhost --master_port=12355"
SINGLE = (
    "--nodes 1 --gpus-per-node 2 --env ACCELERATE_MIXED_PRECISION=bf16 -- train.py --config configs/base_config.yaml"
)
TRANSLATED = [
    (
        "accelerate launch --config_file accelerate_config.yaml sft_multigpu_training.py",
        "--nodes 1 --gpus-per-node 4 --env ACCELERATE_MIXED_PRECISION=bf16 -- sft_multigpu_training.py",
    ),
    ("torchrun --nproc_per_node=4 --master_port=29500 sft_multigpu_training.py",
     "--gpus-per-node 4 -- sft_multigpu_training.py"),
    ("accelerate launch --config_file accelerate_config_single_node.yaml train.py --config configs/base_config.yaml",
     SINGLE),
    (f"python -m torch.distributed.launch --nproc_per_node=4 {FINETUNE} --batch-size 128",
     f"--gpus-per-node 4 -- {FINETUNE} --batch-size 128".replace(".py ", ".py '--local-rank={local_rank}' ")),
    (f"torchrun --nproc_per_node=4 {FINETUNE} --batch-size 128", f"--gpus-per-node 4 -- {FINETUNE} --batch-size 128"),
    (f"torchrun --nproc_per_node=4 {MIXER}", f"--gpus-per-node 4 -- {MIXER}"),
    (f"torchrun --nproc_per_node=4 --nnodes=2 --node_rank=0 {BY_HAND} {FINETUNE}",
     f"--nodes 2 --gpus-per-node 4 -- {FINETUNE}"),
    (f"torchrun --nproc_per_node=4 --nnodes=2 --node_rank=1 {BY_HAND} {FINETUNE}",
     f"--nodes 2 --gpus-per-node 4 -- {FINETUNE}"),
    (f"torchrun --nproc_per_node=2 {ALONE} {LLADA}", f"--nodes 1 --gpus-per-node 2 -- {LLADA}"),
    (f"torchrun --nproc_per_node=4 {ALONE} {LLADA}", f"--nodes 1 --gpus-per-node 4 -- {LLADA}"),
    (f"NCCL_DEBUG=INFO torchrun --nproc_per_node=2 {LLADA}", f"--gpus-per-node 2 --env NCCL_DEBUG=INFO -- {LLADA}"),
]  # fmt: skip
REFUSED = [
    (
        "sbatch scripts/train_slurm_multi_node.sh",
        "--nodes 2 --gpus-per-node 4 --time 24:00:00 --partition gpu --job-name llada --env NCCL_DEBUG=INFO "
        "--env ACCELERATE_MIXED_PRECISION=bf16 --setup 'module load cuda/12.4' "
        "--sbatch-arg=--mail-user=me@example.org -- train.py --config configs/base_config.yaml",
    ),
    (
        "srun -N2 --gpus-per-node=4 accelerate launch --config_file accelerate_config_multi_node.yaml train.py",
        "--nodes 2 --gpus-per-node 4 --env ACCELERATE_MIXED_PRECISION=bf16 -- train.py",
    ),
]
RUN_ONCE = [
    ("./launch_multigpu.sh", 4),
    ("bash scripts/train_multi_gpu.sh", 2),
    ("CUDA_VISIBLE_DEVICES=0,1 bash scripts/train_multi_gpu.sh", 2),
    ("CUDA_VISIBLE_DEVICES=2,3 bash scripts/train_multi_gpu.sh", 2),
    ("./launch_training.sh", 2),
    ("./launch_training.sh 4", 4),
    ("./launch_training.sh 2 '/path to/dataset'", 2),
]
ONE_PROCESS = [
    "train.py --config configs/debug_config.yaml",
    "finetune.py --dataset path/to/data.csv --target-cols col1 col2 --save-path ./output",
    "train_mixer.py --train-data path/to/train.csv --val-data path/to/val.csv --save-dir ./output",
    LLADA,
]


@pytest.fixture
def guide(desk: Desk) -> Desk:
    make_project(desk.project)
    return desk


def typed(guide: Desk, line: str) -> Said:
    """Type a line after `clusterrun submit --dry-run --script`."""
    return guide.type("submit", "--dry-run", "--script", *shlex.split(line))


def script(said: Said) -> str:
    """The script that would be submitted, without what differs from one submission to the next."""
    run = re.search(r"\d{8}-\d{6}-(\w+)", said.out)
    assert said.status == 0 and run, said.err
    return re.sub(rf"\b{run[1]}\w+", "TOKEN", said.out.replace(run[0], "RUN"))


@pytest.mark.parametrize(("line", "options"), TRANSLATED)
def test_a_launchers_line_becomes_options(guide: Desk, line: str, options: str) -> None:
    said = typed(guide, f"-- {line}")
    assert f" to: clusterrun submit {options}" in said.err
    assert script(said) == script(typed(guide, options))


@pytest.mark.parametrize(("line", "options"), REFUSED)
def test_a_script_is_refused_with_a_line_that_is_accepted(guide: Desk, line: str, options: str) -> None:
    said = typed(guide, f"-- {line}")
    assert (said.status, said.out) == (2, "")
    assert said.err.splitlines()[1:] == [f"  hint: clusterrun submit {options}"]
    assert script(typed(guide, options))


@pytest.mark.parametrize(("line", "gpus"), RUN_ONCE)
def test_a_script_runs_as_it_is_with_the_gpus_that_it_names(guide: Desk, line: str, gpus: int) -> None:
    said = typed(guide, f"-- {line}")
    program = line.rpartition("=")[2].removeprefix("0,1 ").removeprefix("2,3 ")
    once = f"--gpus-per-node {gpus} --launcher none -- {program}"
    how = r"so it runs once, with all GPUs of the job: clusterrun submit (--nodes 1 )?"
    assert re.search(how + re.escape(once), said.err)
    assert script(said) == script(typed(guide, once))


@pytest.mark.parametrize("program", ONE_PROCESS)
def test_a_python_line_is_one_rank(guide: Desk, program: str) -> None:
    said = typed(guide, f"-- python {program}")
    assert script(said) and f"would submit {guide.project}/{program.partition(' ')[0]}" in said.err


def test_variables_without_effect_are_named(guide: Desk) -> None:
    said = typed(guide, "--env CUDA_LAUNCH_BLOCKING=0 --env NCCL_TREE_THRESHOLD=0 --env NCCL_DEBUG=INFO -- train.py")
    notices = [line for line in said.err.splitlines() if "no effect" in line]
    assert notices == [
        "clusterrun: --env CUDA_LAUNCH_BLOCKING=0 has no effect: 0 is the default",
        "clusterrun: --env NCCL_TREE_THRESHOLD=0 has no effect: NCCL 2.5 and newer ignore it",
    ]


def test_a_variable_whose_value_looks_like_a_second_one_is_named_with_the_line_for_two(desk: Desk) -> None:
    said = desk.type(
        "submit", "--dry-run", "--env", "A=1,B=2", "--env", "C=x=1,y=2", "--env", "D=INIT,NET", "--", "train.py"
    )
    (notice,) = [line for line in said.err.splitlines() if "--env" in line]
    assert notice == "clusterrun: --env sets one variable, A, to 1,B=2; for several variables: --env A=1 --env B=2"
