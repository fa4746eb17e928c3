"""A training script as one writes it for torchrun: ranks that average gradients, for as long as a file is missing.

By hand in place of DDP and an optimizer, which both load torch's compiler: that takes as long as all else.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(4, 1)
start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
print(f"start {start}", flush=True)
ends = sys.argv[1]
while True:
    model.zero_grad()
    model(torch.ones(8, 4) * (rank + 1)).square().mean().backward()
    with torch.no_grad():
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.sub_(0.001 * weight.grad)
    done = torch.tensor(int(os.path.exists(ends)))
    dist.all_reduce(done)
    if done.item():
        break
    time.sleep(0.02)
print(f"rank {rank} ends", flush=True)
dist.destroy_process_group()
