"""A training script as one writes it for torchrun: no word of clusterrun in it."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
value = torch.tensor([float(rank + 1)], device=device)
dist.all_reduce(value)
print(f"rank {rank} of {world}: sum {int(value.item())} args {sys.argv[1:]}", flush=True)
dist.destroy_process_group()
