"""All ranks but 0 wait in a collective for ever; rank 0 sleeps."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
print("waiting", flush=True)
if os.environ["RANK"] == "0":
    time.sleep(600)
dist.all_reduce(torch.ones(1))
