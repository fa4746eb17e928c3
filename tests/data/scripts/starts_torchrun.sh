#!/bin/sh
# Starts a node's ranks itself, as many users' scripts do.
echo "node $NODE_RANK of $NNODES, world '$WORLD_SIZE', rank '$RANK'"
exec python -m torch.distributed.run --nnodes "$NNODES" --node-rank "$NODE_RANK" --nproc-per-node "$NPROC_PER_NODE" \
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"
