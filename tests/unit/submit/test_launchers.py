"""A launcher typed after -- becomes clusterrun's own options exactly, or is refused with the line to type."""

from __future__ import annotations

import shlex
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.errors import RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Command, Module, Script
from clusterrun.submit.launchers import Place
from clusterrun.submit.request import Request, SubmitArgs, load_request
from clusterrun.submit.typed_launch import translate

#: What `accelerate config` writes for one machine.
ACCELERATE_YAML = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2  # Change to the number of GPUs you want to use (2, 4, 8, etc.)
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
TWO_NODES = ACCELERATE_YAML.replace("num_machines: 1", "num_machines: 2").replace(
    "num_processes: 2", "num_processes: 8"
)
DECLARES = "import argparse\np = argparse.ArgumentParser()\np.add_argument({!r}, type=int, default=-1)\n"
FILES = {
    **dict.fromkeys(("train.py", "sft_multigpu_training.py", "finetune.py", "train_mixer.py"), ""),
    "train_llada_pretrained.py": "",
    "old.py": DECLARES.format("--local_rank"),
    "new.py": DECLARES.format("--local-rank"),
    "both.py": DECLARES.format("--local_rank") + "import os\nos.environ['LOCAL_RANK']\n",
    "clicks.py": "import click\n@click.command()\n@click.option('--local_rank', type=int)\ndef main(local_rank): ...\n",
    "mpi.py": "from mpi4py import MPI\n",
    "broken.py": "def (",
    "accelerate_config.yaml": ACCELERATE_YAML.replace("num_processes: 2", "num_processes: 4"),
    "accelerate_config_single_node.yaml": ACCELERATE_YAML,
    "accelerate_config_multi_node.yaml": TWO_NODES,
    "fsdp.yaml": TWO_NODES.replace("MULTI_GPU", "FSDP") + "fsdp_config:\n  fsdp_version: 2\n",
    "dynamo.yaml": ACCELERATE_YAML + "dynamo_config:\n  dynamo_backend: INDUCTOR\n  mode: max-autotune\n",
    "cpu.yaml": ACCELERATE_YAML.replace("MULTI_GPU", "MULTI_CPU").replace("use_cpu: false", "use_cpu: true"),
    "text.yaml": "a: [",
    "unknown.yaml": ACCELERATE_YAML + "speed: fast\n",
    "launch_multigpu.sh": "#!/bin/bash\nexport NCCL_DEBUG=INFO\n"
    "torchrun --nproc_per_node=4 --master_port=29500 sft_multigpu_training.py\n",
    "launch_training.sh": '#!/bin/bash\nset -e\n# torchrun in a comment\nNUM_GPUS=${1:-2}\nDATA="${2:-shakespeare}"\n'
    'echo "torchrun starts"\ntorchrun \\\n    --nproc_per_node=$NUM_GPUS \\\n    train_llada_pretrained.py '
    '--data_dir "$DATA" --fp16 2>&1 | tee log\n',
    "checked.sh": '#!/bin/bash\nif [ -z "$1" ]; then exit 1; fi\ntorchrun --nproc_per_node=2 train.py "$@"\n',
    "counted.sh": "torchrun --nproc_per_node=$(nvidia-smi -L | wc -l) train.py $EXTRA\n",
    "twice.sh": "torchrun --nproc_per_node=2 train.py\ntorchrun --nproc_per_node=2 finetune.py\n",
    "moved.sh": 'cd "$(dirname "$0")"\ntorchrun --nproc_per_node=2 train.py\n',
    "secret.sh": "export HF_TOKEN=hf_" + "a1" * 17 + "\ntorchrun --nproc_per_node=2 train.py\n",
    "token.sh": "torchrun --nproc_per_node=2 train.py --token hf_" + "a1" * 17 + "\n",
    "precision.sh": "accelerate launch --num_processes 2 --mixed_precision $MP train.py\n",
    "shifted.sh": 'N=$1\nshift\ntorchrun --nproc_per_node=$N train.py "$@"\n',
    "installer.sh": "#!/bin/sh\necho start\n" + "'&;" * 200_000 + "\n",
    "plain.sh": "#!/bin/sh\necho torchrun\n",
    "shebang": "#!/usr/bin/env bash\nexec torchrun --nproc_per_node=2 train.py \"$@\"\n",
    "scripts/train_multi_gpu.sh": "#!/bin/bash\naccelerate launch \\\n"
    "  --config_file accelerate_config_single_node.yaml \\\n  train.py \\\n  --config configs/base_config.yaml\n",
    "scripts/train_slurm_multi_node.sh": """\
#!/bin/bash
#SBATCH --job-name=llada
#SBATCH --nodes=2                   # Number of nodes
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4          # Number of GPUs per node
#SBATCH --partition=gpu            # Partition name
#SBATCH --time=24:00:00 --mail-user me@example.org
#SBATCH --output=logs/train_%j.out
module load cuda/12.4
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29500
export NCCL_DEBUG=INFO
srun accelerate launch --config_file accelerate_config_multi_node.yaml \\
    --num_machines $SLURM_NNODES --machine_rank $SLURM_NODEID --main_process_ip $MASTER_ADDR \\
    train.py --config configs/base_config.yaml
""",
    "torchrun.sbatch": """\
#!/bin/bash
#SBATCH -N 4 -n 4 --gpus-per-task=1
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
srun torchrun --nnodes 4 --nproc_per_node 1 --rdzv_id $RANDOM --rdzv_backend c10d \\
  --rdzv_endpoint $head_node_ip:29500 train.py 50 10
rm -rf tmp
""",
    "one.sbatch": "#!/bin/bash\n#SBATCH --gres=gpu:a100:2 -t 60\npython -u train.py --out $SCRATCH/x\n",
    "parts.sbatch": """\
#!/bin/bash
#SBATCH --nodes=2 --gres=gpu:4
LAUNCHER="torchrun --nnodes $SLURM_NNODES --nproc_per_node 4 --rdzv_id $RANDOM"
export CMD="$LAUNCHER train.py --lr 1"
srun $CMD
""",
    "nothing.sbatch": "#!/bin/bash\n#SBATCH -N 2\nmake train\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    return root


def load(project: Path, line: str, **flags: Any) -> Request:
    values = {name.replace("_", "-"): Value(value, f"--{name.replace('_', '-')}") for name, value in flags.items()}
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(project)}
    return load_request(SubmitArgs(command=tuple(shlex.split(line)), flags=values), project, environ)


def became(request: Request) -> str:
    """The line of the notice."""
    (line,) = [notice.partition(" became: ")[2] for notice in request.notices if " became: " in notice]
    return line.partition("   (left out: ")[0]


#: The launchers' lines of four multi-GPU guides, and what each becomes.
GUIDES = [
    (
        "accelerate launch --config_file accelerate_config.yaml sft_multigpu_training.py",
        "--nodes 1 --gpus-per-node 4 --env ACCELERATE_MIXED_PRECISION=bf16 -- sft_multigpu_training.py",
    ),
    (
        "torchrun --nproc_per_node=4 --master_port=29500 sft_multigpu_training.py",
        "--gpus-per-node 4 -- sft_multigpu_training.py",
    ),
    (
        "accelerate launch --config_file accelerate_config_single_node.yaml train.py --config configs/base_config.yaml",
        "--nodes 1 --gpus-per-node 2 --env ACCELERATE_MIXED_PRECISION=bf16 "
        "-- train.py --config configs/base_config.yaml",
    ),
    (
        "CUDA_VISIBLE_DEVICES=2,3 accelerate launch train.py",
        "--gpus-per-node 2 -- train.py",
    ),
    (
        "python -m torch.distributed.launch --nproc_per_node=4 finetune.py --distributed --target-cols col1 col2",
        "--gpus-per-node 4 -- finetune.py '--local-rank={local_rank}' --distributed --target-cols col1 col2",
    ),
    (
        "torchrun --nproc_per_node=4 finetune.py --distributed --dataset path/to/data.csv --batch-size 128",
        "--gpus-per-node 4 -- finetune.py --distributed --dataset path/to/data.csv --batch-size 128",
    ),
    (
        "torchrun --nproc_per_node=4 train_mixer.py --distributed --train-data a.csv b.csv --formatter hisco",
        "--gpus-per-node 4 -- train_mixer.py --distributed --train-data a.csv b.csv --formatter hisco",
    ),
    (
        "torchrun --nproc_per_node=4 --nnodes=2 --node_rank=0 --master_addr='<master_node_ip>' --master_port=29500 "
        "finetune.py --distributed",
        "--nodes 2 --gpus-per-node 4 -- finetune.py --distributed",
    ),
    (
        "torchrun --nproc_per_node=4 --nnodes=2 --node_rank=1 --master_addr='<master_node_ip>' --master_port=29500 "
        "finetune.py --distributed",
        "--nodes 2 --gpus-per-node 4 -- finetune.py --distributed",
    ),
    (
        "torchrun --nproc_per_node=2 --nnodes=1 --node_rank=0 --master_addr=localhost --master_port=12355 "
        "train_llada_pretrained.py --data_dir shakespeare_processed --batch_size 1 --epochs 5 --fp16",
        "--nodes 1 --gpus-per-node 2 -- train_llada_pretrained.py --data_dir shakespeare_processed --batch_size 1 "
        "--epochs 5 --fp16",
    ),
    (
        "NCCL_DEBUG=INFO torchrun --nproc_per_node=2 train.py",
        "--gpus-per-node 2 --env NCCL_DEBUG=INFO -- train.py",
    ),
]  # fmt: skip
#: The lines of the guides that start a script, or configure: refused, with the line to type.
REFUSED_GUIDES = [
    ("./launch_multigpu.sh", "--gpus-per-node 4 --env NCCL_DEBUG=INFO -- sft_multigpu_training.py"),
    (
        "bash scripts/train_multi_gpu.sh",
        "--nodes 1 --gpus-per-node 2 --env ACCELERATE_MIXED_PRECISION=bf16 "
        "-- train.py --config configs/base_config.yaml",
    ),
    (
        "sbatch scripts/train_slurm_multi_node.sh",
        "--nodes 2 --gpus-per-node 4 --time 24:00:00 --partition gpu --job-name llada --env NCCL_DEBUG=INFO "
        "--env ACCELERATE_MIXED_PRECISION=bf16 --setup 'module load cuda/12.4' "
        "--sbatch-arg=--mail-user=me@example.org -- train.py --config configs/base_config.yaml",
    ),
    ("./launch_training.sh", "--gpus-per-node 2 -- train_llada_pretrained.py --data_dir shakespeare --fp16"),
    ("./launch_training.sh 4", "--gpus-per-node 4 -- train_llada_pretrained.py --data_dir shakespeare --fp16"),
    (
        "./launch_training.sh 2 '/path to/dataset'",
        "--gpus-per-node 2 -- train_llada_pretrained.py --data_dir '/path to/dataset' --fp16",
    ),
]


@pytest.mark.parametrize(("line", "expected"), GUIDES)
def test_the_guides_lines_are_translated(project: Path, line: str, expected: str) -> None:
    request = load(project, line)
    assert became(request) == f"clusterrun submit {expected}"
    # `why` repeats the options whose source starts so
    assert all(value.source.startswith("--") for name, value in request.values.items() if name != "python")


@pytest.mark.parametrize(("line", "expected"), REFUSED_GUIDES)
def test_the_guides_scripts_are_refused_with_the_line_to_type(project: Path, line: str, expected: str) -> None:
    with pytest.raises(RequestError) as error:
        load(project, line)
    assert error.value.hint == f"clusterrun submit {expected}" and error.value.exit_code == 2


def test_accelerates_other_commands_train_nothing(project: Path) -> None:
    with pytest.raises(RequestError, match="accelerate config trains nothing"):
        load(project, "accelerate config --config_file accelerate_config.yaml")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torchrun --nnodes 2 --nproc_per_node 4 train.py", "--nodes 2 --gpus-per-node 4 -- train.py"),
        ("torchrun --nnodes 2 --nproc 4 --standalone -m pkg.train", "--nodes 2 --gpus-per-node 4 -- -m pkg.train"),
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
            "srun -N2 --ntasks-per-node=1 --gres=gpu:a100:4 --export=ALL,A=1 --exclusive "
            "torchrun --nproc_per_node 4 train.py",
            "--nodes 2 --gres gpu:a100:4 --env A=1 --sbatch-arg=--exclusive -- train.py",
        ),
        ("mpirun -np 8 python train.py", "--gpus-per-node 8 -- train.py"),
        ("mpirun -np 8 -H a:4,b:4 -x A=1 --mca btl tcp train.py", "--nodes 2 --gpus-per-node 4 --env A=1 -- train.py"),
        ("mpiexec -genv A 1 -f hosts -n 8 -ppn 4 train.py", "--nodes 2 --gpus-per-node 4 --env A=1 -- train.py"),
        ("mpiexec -n 8 -ppn 4 train.py", "--nodes 2 --gpus-per-node 4 -- train.py"),
        ("mpirun -np 4 --map-by ppr:2:node train.py", "--nodes 2 --gpus-per-node 2 -- train.py"),
        ("horovodrun -np 4 train.py", "--gpus-per-node 4 -- train.py"),
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


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("torchrun --nnodes 2 --nproc_per_node 4 --max-restarts 3 train.py", "--max-restarts of torchrun",
         "--nodes 2 --gpus-per-node 4 --launcher torchrun --max-restarts 3 -- train.py"),
        ("torchrun --nproc_per_node 4 -t 3 train.py", "--tee of torchrun cannot be translated",
         "--gpus-per-node 4 -- train.py"),
        ("torchrun --nnodes 1:4 --nproc_per_node 4 train.py", "1:4 is not a fixed number",
         "--nodes 1 --gpus-per-node 4 -- train.py"),
        ("torchrun --nproc_per_node 4 --virtual-local-rank train.py", "--virtual-local-rank of torchrun",
         "--gpus-per-node 4 --launcher none -- torchrun --nproc_per_node 4 --virtual-local-rank train.py"),
        ("accelerate launch --config_file fsdp.yaml train.py", "distributed_type FSDP in fsdp.yaml",
         "--nodes 2 --gpus-per-node 4 --launcher accelerate --accelerate-config fsdp.yaml -- train.py"),
        ("accelerate launch --use_fsdp --num_processes 4 train.py", "--use_fsdp of accelerate launch",
         "--gpus-per-node 4 --launcher none -- accelerate launch --use_fsdp --num_processes 4 train.py"),
        ("accelerate launch --use_deepspeed --num_processes 8 --num_machines 2 train.py", "--use_deepspeed",
         "--nodes 2 --gpus-per-node 4 --launcher accelerate --accelerate-config FILE -- train.py"),
        ("mpirun -np 2 python mpi.py", "mpi.py uses mpi4py",
         "--gpus-per-node 2 --launcher none -- mpirun -np 2 python mpi.py"),
        ("srun -N2 -D /data train.py", "--chdir of srun",
         "cd /data && clusterrun submit --nodes 2 --gpus-per-node 0 -- train.py"),
        ("uv run torchrun --nproc_per_node 2 train.py", "uv starts torchrun",
         "--gpus-per-node 2 --launcher none -- uv run torchrun --nproc_per_node 2 train.py"),
        ("bash -c 'torchrun --nproc_per_node 2 train.py'", "bash -c starts torchrun", "--gpus-per-node 2 -- train.py"),
        ("./checked.sh a", "checked.sh starts torchrun", "--gpus-per-node 2 --launcher none -- ./checked.sh a"),
        ("bash -e counted.sh", "counted.sh starts torchrun", "--launcher none -- bash -e counted.sh"),
        ("./twice.sh", "twice.sh starts torchrun", "--gpus-per-node 2 --launcher none -- ./twice.sh"),
        ("./moved.sh", "moved.sh starts torchrun", "--gpus-per-node 2 --launcher none -- ./moved.sh"),
        ("./shifted.sh 2 a", "shifted.sh starts torchrun", "--gpus-per-node 2 --launcher none -- ./shifted.sh 2 a"),
        ("./precision.sh", "precision.sh starts", "--gpus-per-node 2 --launcher none -- ./precision.sh"),
        ("./secret.sh", "secret.sh starts torchrun", "--gpus-per-node 2 --launcher none -- ./secret.sh"),
        ("./shebang a 'b c'", "shebang starts torchrun", "--gpus-per-node 2 -- train.py a 'b c'"),
        ("srun -N2 ./launch_multigpu.sh", "launch_multigpu.sh starts torchrun",
         "--nodes 2 --gpus-per-node 4 --env NCCL_DEBUG=INFO -- sft_multigpu_training.py"),
        ("sbatch torchrun.sbatch", "not in the line below: line 7", "--nodes 4 --gpus-per-node 1 -- train.py 50 10"),
        ("sbatch -N2 -n2 --export A=1 one.sbatch", "since clusterrun submits jobs itself",
         '--nodes 2 --tasks-per-node 1 --time 60 --gres gpu:a100:2 --env A=1 -- train.py --out "$SCRATCH/x"'),
        ("sbatch parts.sbatch", "since clusterrun submits jobs itself",
         "--nodes 2 --gpus-per-node 4 -- train.py --lr 1"),
        ("sbatch nothing.sbatch", "no line that starts the training",
         "--nodes 2 --gpus-per-node 0 --launcher none -- bash nothing.sbatch"),
        ("sbatch --wrap 'srun python train.py' -N2 --ntasks-per-node=4 --gres=gpu:4", "sbatch --wrap is refused",
         "--nodes 2 --gpus-per-node 4 -- train.py"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_refused_with_the_line(project: Path, line: str, message: str, hint: str) -> None:
    with pytest.raises(RequestError) as error:
        load(project, line)
    assert message in error.value.message
    assert error.value.hint == (hint if hint.startswith("cd ") else f"clusterrun submit {hint}")


@pytest.mark.parametrize(
    ("line", "flags", "message"),
    [
        ("torchrun --nnodes 2 train.py", {"nodes": 3}, "--nodes is 3, but --nnodes of torchrun is 2"),
        ("torchrun --nproc_per_node 4 train.py", {"gpus_per_node": 8}, "--gpus-per-node is 8, but --nproc_per_node"),
        ("torchrun --nproc_per_node 4 train.py", {"gres": "gpu:2"}, "--gres is 2, but --nproc_per_node"),
        ("accelerate launch --cpu train.py", {"gpus_per_node": 2}, "--gpus-per-node is 2, but --cpu"),
        ("srun -t 5 train.py", {"time": "10"}, "--time is 10, but --time of srun is 5"),
        ("A=1 torchrun train.py", {"env": {"A": "2"}}, "--env before torchrun"),
        ("mpirun -np 8 train.py", {"nodes": 3}, "8 ranks do not divide by 3"),
        ("accelerate launch --num_processes 7 --num_machines 2 train.py", {}, "7 ranks do not divide by 2"),
        ("srun -N2 torchrun --nnodes 3 train.py", {}, "--nodes of srun is 2, but --nnodes of torchrun is 3"),
        ("srun -N2 --ntasks-per-node=4 torchrun --nnodes 2 train.py", {}, "more than one torchrun per node"),
        ("torchrun --nproc_per_node many train.py", {}, "not a number: 'many'"),
        ("torchrun --nproc_per_node", {}, "--nproc_per_node needs a value"),
        ("torchrun --nproc_per_node 4", {}, "torchrun: no script or program"),
        ("deepspeed --num_gpus 4", {}, "deepspeed: no script or program"),
        ("torchrun --bogus 3 train.py", {}, "does not know the option --bogus"),
        ("accelerate launch --config_file none.yaml train.py", {}, "no such file: none.yaml"),
        ("accelerate launch --config_file train.py train.py", {}, "not an accelerate configuration"),
        ("accelerate launch --config_file broken.py train.py", {}, "not an accelerate configuration"),
        ("accelerate launch --config_file text.yaml train.py", {}, "text.yaml cannot be parsed by"),
        ("accelerate launch --config_file unknown.yaml train.py", {}, "accelerate has no setting speed"),
        ("./token.sh", {}, "the launcher's line in ./token.sh: this looks like a Hugging Face token"),
        ("torchrun --tee 3 train.py 'a\nb'", {}, "a newline is not allowed"),
        ("sbatch gone.sh", {}, "no such script: gone.sh"),
    ],
)  # fmt: skip
def test_contradictions_and_errors(project: Path, line: str, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as error:
        load(project, line, **flags)
    assert message in error.value.message


@pytest.mark.parametrize(
    ("line", "flags", "expected"),
    [
        ("torchrun --nproc_per_node 4 train.py", {"nodes": 2}, "--nodes 2 --gpus-per-node 4"),
        ("torchrun --nproc_per_node 4 train.py", {"gpus_per_node": 0}, "--gpus-per-node 0 --tasks-per-node 4"),
        ("torchrun --nproc_per_node 4 train.py", {"gres": "gpu:a100:4"}, "--gres gpu:a100:4"),
        ("torchrun --nproc_per_node 4 train.py", {"gpus_per_node": 8, "tasks_per_node": 4},
         "--gpus-per-node 8 --tasks-per-node 4"),
        ("mpirun -np 8 train.py", {"nodes": 2}, "--nodes 2 --gpus-per-node 4"),
        ("mpirun -np 8 train.py", {"gpus_per_node": 4}, "--nodes 2 --gpus-per-node 4"),
        ("accelerate launch train.py", {"gpus_per_node": 0, "tasks_per_node": 2},
         "--gpus-per-node 0 --tasks-per-node 2 --env ACCELERATE_USE_CPU=true"),
    ],
)  # fmt: skip
def test_typed_options_complete_a_line(project: Path, line: str, flags: dict[str, Any], expected: str) -> None:
    assert became(load(project, line, **flags)) == f"clusterrun submit {expected} -- train.py"


def test_a_line_without_nodes_means_one_whatever_the_profile_says(project: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "clusterrun.toml").write_text('nodes = 4\ngpus-per-node = 8\ntasks-per-node = 2\npartition = "p"\n')
    request = load(tmp_path, "torchrun --nproc_per_node 4 train.py")
    shape = [request.values[name].value for name in ("nodes", "gpus-per-node", "tasks-per-node", "partition")]
    assert shape == [1, 4, 4, "p"]
    assert load(tmp_path, "torchrun --nnodes '$SLURM_NNODES' --nproc_per_node 4 train.py").values["nodes"].value == 4


def test_sources_name_the_launchers_option_and_why_can_repeat_them(project: Path) -> None:
    values = load(project, "srun -N2 --gres=gpu:4 torchrun --nproc_per_node 4 train.py").values
    assert values["nodes"] == Value(2, "--nodes of srun") and values["gpus-per-node"].source == "--gres of srun"
    assert load(project, "torchrun --nproc_per_node 4 train.py").values["gpus-per-node"] == Value(
        4, "--nproc_per_node of torchrun"
    )


def test_what_is_left_out_is_named(project: Path) -> None:
    (notice,) = load(project, "torchrun --nproc_per_node 2 --master_addr a --rdzv_id=7 train.py").notices
    assert notice.endswith("   (left out: --master_addr, --rdzv_id)")
    notices = load(project, "deepspeed train.py").notices
    assert notices[1] == "deepspeed does not say how many GPUs: add --gpus-per-node N for more than one per node"


def test_the_default_accelerate_configuration_counts_too(tmp_path: Path) -> None:
    folder = tmp_path / ".cache" / "huggingface" / "accelerate"
    folder.mkdir(parents=True)
    (folder / "default_config.yaml").write_text(ACCELERATE_YAML)
    (tmp_path / "train.py").write_text("")
    assert load(tmp_path, "accelerate launch train.py").values["env"].value == {"ACCELERATE_MIXED_PRECISION": "bf16"}
    assert "env" not in load(tmp_path, "torchrun train.py").values
    assert load(tmp_path, "accelerate launch --cpu train.py").values["env"].value == {"ACCELERATE_USE_CPU": "true"}


@pytest.mark.parametrize(
    ("line", "args"),
    [
        ("old.py --x 1", ("--local_rank={local_rank}", "--x", "1")),
        ("python -u new.py", ("--local-rank={local_rank}",)),
        ("clicks.py", ("--local_rank={local_rank}",)),
        ("old.py --local_rank 0", ("--local_rank", "0")),
        ("old.py --local-rank=0", ("--local-rank=0",)),
        ("both.py", ()),
        ("train.py", ()),
        ("broken.py", ()),
    ],
)
def test_a_script_that_takes_its_local_rank_as_an_argument_gets_it(
    project: Path, line: str, args: tuple[str, ...]
) -> None:
    request = load(project, line)
    assert isinstance(request.work, Script) and request.work.args == args
    assert any("{local_rank}" in notice for notice in request.notices) == any("{" in word for word in args)


def test_another_launcher_is_left_alone(project: Path) -> None:
    place = Place(project, {})
    for words in (["torchrun", "--tee", "3", "train.py"], ["./twice.sh"], ["sbatch", "x.sh"], ["old.py"]):
        assert translate(words, {"launcher": Value("none", "")}, {}, place, pytest.fail) == (tuple(words), {})
    with pytest.raises(RequestError):
        translate(["./twice.sh"], {}, {}, place, pytest.fail)
    assert translate(["./twice.sh"], {"launcher": Value("srun", "")}, {}, place, pytest.fail) == (("./twice.sh",), {})


def test_a_launcher_within_a_launcher_is_refused(project: Path) -> None:
    words = ["torchrun", "--nproc_per_node", "4", "train.py"]
    with pytest.raises(RequestError, match="would start torchrun once per rank") as error:
        translate(words, {"launcher": Value("torchrun", "")}, {}, Place(project, {}), pytest.fail)
    assert error.value.hint == "clusterrun submit --gpus-per-node 4 --launcher torchrun -- train.py"


@pytest.mark.parametrize(
    "line",
    [
        "timeout 60 python train.py --launcher accelerate --lr 1",
        "env -i python train.py --strategy deepspeed",
        "numactl -l python train.py --backend srun",
        "nice -n torchrun python train.py",
    ],
)
def test_words_that_are_no_launcher_pass(project: Path, line: str) -> None:
    words = tuple(line.split())
    assert translate(words, {}, {}, Place(project, {}), pytest.fail) == (words, {})


def test_a_launcher_in_usage_text_or_asked_for_its_version_is_no_launch(project: Path) -> None:
    (project / "usage.sh").write_text("#!/bin/sh\ncat <<EOF\ntorchrun train.py\nEOF\ntorchrun --version\npython x.py\n")
    assert translate(["./usage.sh"], {}, {}, Place(project, {}), pytest.fail) == (("./usage.sh",), {})


def test_a_program_of_ones_own_with_a_launchers_name_passes(project: Path) -> None:
    for name in ("accelerate", "deepspeed", "srun"):
        words = (f"./{name}", "-N", "2", "train.py")
        assert translate(words, {}, {}, Place(project, {}), pytest.fail) == (words, {})


def test_variables_that_clusterrun_sets_are_left_out(project: Path) -> None:
    words = ["MASTER_PORT=29501", "A=1", "torchrun", "--nproc_per_node", "4", "train.py"]
    command, options = translate(words, {}, {}, Place(project, {}), lambda notice: None)
    assert command == ("train.py",)
    assert options["env"].value == {"A": "1"}


def test_a_local_rank_of_subcommands_or_of_one_rank_is_not_added(project: Path) -> None:
    (project / "sub.py").write_text("s = p.add_subparsers()\ns.add_parser('train').add_argument('--local_rank')\n")
    place = Place(project, {})
    assert translate(["sub.py", "train"], {}, {}, place, pytest.fail) == (("sub.py", "train"), {})
    single = {"gpus-per-node": Value(0, "--gpus-per-node")}
    assert translate(["old.py"], single, {}, place, pytest.fail) == (("old.py",), {})


def test_a_long_chain_of_calls_does_not_stop_a_submission(project: Path) -> None:
    (project / "chain.py").write_text("# --local_rank\nA()" + ".add(0)" * 900)
    assert translate(["chain.py"], {}, {}, Place(project, {}), pytest.fail) == (("chain.py",), {})


def test_shell_scripts_without_a_launcher_run_as_before(project: Path) -> None:
    assert load(project, "./plain.sh a").work == Command(f"{project}/plain.sh", ("a",))
    assert load(project, "./installer.sh").work == Command(f"{project}/installer.sh")
    assert load(project, "env true").work == Command("/usr/bin/env", ("true",))
    assert isinstance(load(project, "-m pkg.train").work, Module)


WORD = st.text(st.characters(blacklist_characters="\n\0", blacklist_categories=("Cs",)), max_size=12).filter(":".__ne__)
OPTION = st.sampled_from(
    ["--nnodes", "-m", "--", "--nproc_per_node=3", "-h", "--devices", "-N2", "--help", "$HOME", "{x}"]
)
LAUNCHERS = st.sampled_from([
    "torchrun --nproc_per_node 2", "accelerate launch --num_processes 2", "srun -n2", "mpirun -np 2",
    "deepspeed --no_local_rank", "-m torch.distributed.launch --use-env", "srun -n1 torchrun",
])  # fmt: skip


@given(LAUNCHERS, st.lists(WORD | OPTION, max_size=6))
def test_the_scripts_own_words_pass_unchanged(project: Path, launcher: str, words: list[str]) -> None:
    notices: list[str] = []
    typed = [*launcher.split(), "train.py", *words]
    program, _ = translate(typed, {}, {}, Place(project, {}), notices.append)
    assert program == ("train.py", *words)
    line = notices[0].partition(" became: ")[2].partition("   (left out: ")[0]
    assert shlex.split(line)[-len(words) - 1 :] == ["train.py", *words]


@given(st.lists(st.text(string.printable, max_size=10), max_size=5))
def test_any_words_give_a_command_or_an_error(project: Path, words: list[str]) -> None:
    for launcher in (["torchrun"], ["srun"], ["mpirun"], ["fabric", "run"], ["sbatch"], ["bash", "-c"]):
        try:
            translate([*launcher, *words], {}, {}, Place(project, {}), lambda line: None)
        except RequestError as error:
            assert error.message
