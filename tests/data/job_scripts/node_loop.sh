#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:2
START="accelerate launch --mixed_precision=bf16 --num_machines 2 --num_processes 4 --gpu_ids all"
HOSTS=($(scontrol show hostnames $SLURM_JOB_NODELIST))
for number in 0 1
do
  srun -N 1 -n 1 -w ${HOSTS[number]} bash -c "$START --machine_rank $number train.py" &
done
wait
