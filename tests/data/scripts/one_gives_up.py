"""Rank 1 leaves with status 3 while the others wait for it in a collective."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    sys.exit(3)
dist.all_reduce(torch.ones(1))
