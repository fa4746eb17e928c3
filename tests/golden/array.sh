#!/bin/bash
# clusterrun: an array of runs. Each task starts the script of its own run, which does the rest.

# Resources per task, copied from a run's script.
#SBATCH --job-name="train.k3v7qaab"
#SBATCH --comment="a \"b\" #c"
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --time="2:00:00"
#SBATCH --output="/home/ann/project/logs/train_%j.out"
#SBATCH --error="/home/ann/project/logs/train_%j.err"
#SBATCH --open-mode=append
#SBATCH --chdir="/home/ann/project/src"
#SBATCH --no-requeue
#SBATCH --export=ALL
#SBATCH --array="0-2%2"

# The run id of each task, by task index.
# shellcheck disable=SC1003,SC1112,SC2016 # the path is in single quotes: data, never expanded
CR_RUNS='/home/ann'"'"'s/100% project/.clusterrun/runs'
CR_RUN_IDS=(
    [0]=20261121-034501-k3v7qa
    [1]=20261121-034501-k3v7qb
    [2]=20261121-034501-k3v7qc
)
exec /bin/bash -l "$CR_RUNS/${CR_RUN_IDS[$SLURM_ARRAY_TASK_ID]}/script.sh"
