"""All ranks add a number up, pause, and do it again: ranks of another job among them would spoil the sum.

Usage: meets_its_own.py NUMBER SECONDS
"""

import sys
import time

import torch
import torch.distributed as dist

number, seconds = int(sys.argv[1]), float(sys.argv[2])
dist.init_process_group("gloo")
for _ in range(2):
    value = torch.tensor([number])
    dist.all_reduce(value)
    print(f"sum {value.item()} at {time.time():.2f}", flush=True)
    time.sleep(seconds)
dist.destroy_process_group()
