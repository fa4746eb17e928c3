"""A training script as one writes it for torchrun: DDP over a small model, for as long as its file `go` is missing."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
print(f"start {start}", flush=True)
ends = sys.argv[1]
step = 0
while True:
    loss = model(torch.ones(8, 4) * (rank + 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    done = torch.tensor(int(os.path.exists(ends)))
    dist.all_reduce(done)
    if done.item():
        break
    time.sleep(0.02)
print(f"rank {rank} ends", flush=True)
dist.destroy_process_group()
