#!/bin/bash
# Starts ranks on its own node only; the condition keeps it from being a line of clusterrun.
if [ -z "$1" ]; then exit 1; fi
export MASTER_ADDR=localhost NODE_RANK=0
torchrun --nproc_per_node=$1 --node_rank $NODE_RANK --master_addr $MASTER_ADDR train.py
