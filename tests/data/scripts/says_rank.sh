#!/bin/sh
# Says which rank it is, and its arguments: a rank of a command imports no torch.
echo "rank $RANK of $WORLD_SIZE: args $*"
