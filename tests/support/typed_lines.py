"""A project with scripts of many kinds, and what `submit` makes of a line typed in it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from clusterrun.jobspec.fields import Value
from clusterrun.submit.request import Request, SubmitArgs, load_request

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
    "launch_multigpu.sh": "#!/bin/bash\nexport NCCL_DEBUG=INFO\n"
    "torchrun --nproc_per_node=4 --master_port=29500 sft_multigpu_training.py\n",
    "launch_training.sh": '#!/bin/bash\nset -e\n# torchrun in a comment\nNUM_GPUS=${1:-2}\nDATA="${2:-shakespeare}"\n'
    'echo "torchrun starts"\ntorchrun \\\n    --nproc_per_node=$NUM_GPUS \\\n    train_llada_pretrained.py '
    '--data_dir "$DATA" --fp16 2>&1 | tee log\n',
    "checked.sh": '#!/bin/bash\nif [ -z "$1" ]; then exit 1; fi\ntorchrun --nproc_per_node=2 train.py "$@"\n',
    "counted.sh": "torchrun --nproc_per_node=$(nvidia-smi -L | wc -l) train.py $EXTRA\n",
    "twice.sh": "torchrun --nproc_per_node=2 train.py\ntorchrun --nproc_per_node=2 finetune.py\n",
    "ranked.sh": "if [ -z $1 ]; then exit 1; fi\ntorchrun --nnodes $NNODES --node-rank $NODE_RANK --nproc-per-node 4"
    " --master-addr $MASTER_ADDR --master-port $MASTER_PORT train.py\n",
    "stays.sh": 'cd "$(dirname "$0")"\ntorchrun --nproc_per_node=2 train.py\n',
    "moved.sh": 'cd sub\ntorchrun --nproc_per_node=2 train.py\n',
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
    "exported.sbatch": """\
#!/bin/bash
#SBATCH --nodes=2 --gres=gpu:4
export LAUNCHER="accelerate launch --num_processes 8 --num_machines 2"
export CMD="$LAUNCHER train.py"
srun $CMD
""",
    "nothing.sbatch": "#!/bin/bash\n#SBATCH -N 2\nmake train\n",
}  # fmt: skip


def make_project(root: Path) -> Path:
    """Write the project's files into a folder, and return it."""
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
    (line,) = [notice.partition(" to: ")[2] for notice in request.notices if " to: " in notice]
    return line.partition("   (left out: ")[0]
