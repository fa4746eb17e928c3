#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=4
FORCE_TORCHRUN=1 NNODES=2 RANK=$SLURM_PROCID llamafactory-cli train x.yaml
