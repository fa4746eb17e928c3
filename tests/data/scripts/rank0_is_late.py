"""Rank 0 saves for a while after the others have returned: rank0_is_late.py SECONDS."""

import sys
import time

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
rank = dist.get_rank()
dist.destroy_process_group()
if rank == 0:
    time.sleep(float(sys.argv[1]))
print(f"rank {rank} is through", flush=True)
