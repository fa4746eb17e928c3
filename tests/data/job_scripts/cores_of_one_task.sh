#!/bin/bash
#SBATCH --ntasks=1 --cpus-per-task=40 --mem=0
#SBATCH --gres=gpu:a100:4
srun python3 -m torch.distributed.run --standalone --nnodes=1 --nproc_per_node=4 train.py $*
