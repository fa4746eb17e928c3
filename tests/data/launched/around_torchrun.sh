#!/bin/bash
# Written for a cluster: starts a node's ranks with torchrun, on one node or on several.
torchrun --nnodes "${NNODES:-1}" --node-rank "${NODE_RANK:-0}" --nproc-per-node "${NPROC_PER_NODE:-2}" \
    --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${MASTER_PORT:-29500}" "$(dirname "$0")/plain_torch.py"
