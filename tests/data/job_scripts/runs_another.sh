#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=2
export NCCL_DEBUG=INFO
bash inner.sh --lr 1
