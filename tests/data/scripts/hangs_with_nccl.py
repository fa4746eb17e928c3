"""Ranks that average a number for ever, each with a stand-in for NCCL's RAS service that says: rank 1 is behind."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.support.nccl_stand_in import KINDS, Communicator, Peer, StandIn, as_json

dist.init_process_group("gloo")
pids = [0] * dist.get_world_size()
dist.all_gather_object(pids, os.getpid())
counts = dict.fromkeys(KINDS, 5)
peers = [Peer(rank, f"10.0.0.{rank}", pid, counts | {"Reduce": 5 - rank % 2}) for rank, pid in enumerate(pids)]
answer = as_json([Communicator(0xAE94423CFBB2EF4A, peers)])
server = StandIn({"json": answer, "text": ""}, port=int(os.environ["NCCL_RAS_ADDR"].rpartition(":")[2]))
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.02)
