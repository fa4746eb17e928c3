#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:2
PER_NODE=2
FIRST=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
START="accelerate launch --num_processes $((SLURM_NNODES * PER_NODE)) --num_machines $SLURM_NNODES --main_process_ip $FIRST --role \$(hostname -s): --tee 3"
CMD="train.py --lr 1e-4"
srun --jobid $SLURM_JOB_ID bash -c "$START --machine_rank \$SLURM_NODEID $CMD" 2>&1 | tee -a all.log
