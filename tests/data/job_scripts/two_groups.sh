#!/bin/bash
#SBATCH --nodes=2
#SBATCH hetjob
#SBATCH --nodes=1
srun --het-group=0 python train.py : --het-group=1 python finetune.py
