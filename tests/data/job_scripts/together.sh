#!/bin/bash
if [ -z "$1" ]; then exit 1; fi
source where.sh
torchrun --nproc_per_node=$1 $WHERE train.py
