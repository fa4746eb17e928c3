#!/bin/bash
cd "$(dirname "${BASH_SOURCE[0]}")"
ARGS=(
    --lr 1e-4    # the rate
    --name "two words"
)
ARGS+=(--steps 10)
export OMP_NUM_THREADS=4 RANK=0
torchrun --nproc_per_node=2 train.py "${ARGS[@]}" > out.log 2>&1
