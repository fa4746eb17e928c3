#!/usr/bin/env bash
set -x
PARTITION=$1
CONFIG=$2
GPUS=${GPUS:-8}
PER_NODE=${PER_NODE:-4}
MORE=${@:3}

PYTHONPATH="$(dirname $0)/..":$PYTHONPATH \
srun -p ${PARTITION} --gres=gpu:${PER_NODE} --ntasks=${GPUS} --ntasks-per-node=${PER_NODE} ${SRUN_ARGS:-""} \
    python -u train.py ${CONFIG} --launcher="slurm" ${MORE}
