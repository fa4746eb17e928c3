#!/bin/bash
# Names that sbatch takes beside those of its manual page: an old alias, and a beginning.
#SBATCH --nodes=2
#SBATCH --tasks-per-node 1
#SBATCH --cpus-per-t=4
#SBATCH --mem=128
#SBATCH --open-mode=append
srun torchrun --nnode 2 --nproc_per_node 2 train.py
