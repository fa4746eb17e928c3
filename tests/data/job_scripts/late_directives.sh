#!/bin/bash
set -euo pipefail
#SBATCH --nodes=2
#SBATCH --gpus-per-node=2
srun --ntasks-per-node=1 torchrun --nproc_per_node=2 --nnodes=2 train.py
