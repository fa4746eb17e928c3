"""Rank 2 gives up with status 3 while the others wait in a collective."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if os.environ["RANK"] == "2":
    sys.exit(3)
dist.all_reduce(torch.ones(1))
