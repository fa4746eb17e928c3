#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --gpus-per-node=2
WORLD_SIZE=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))
RANK=$SLURM_PROCID
export WORLD_SIZE RANK
srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=$SLURM_NTASKS_PER_NODE train.py
