"""Plain torch: saves every 5 steps and resumes; it knows no signal."""

import sys
import time
from pathlib import Path

import steps
import torch
from torch.nn.parallel import DistributedDataParallel

folder, last = Path(sys.argv[1]), int(sys.argv[2])
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs, targets = steps.rows(64)
done = 0
if (folder / "saved.pt").exists():
    saved = torch.load(folder / "saved.pt")
    done = saved["step"]
    model.load_state_dict(saved["model"])
print(f"starts at step {done}", flush=True)
for step in range(done + 1, last + 1):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    time.sleep(1)
    if step % 5 == 0 and rank == 0:
        torch.save({"step": step, "model": model.state_dict()}, folder / "new.pt")
        (folder / "new.pt").rename(folder / "saved.pt")
print("done", flush=True)
torch.distributed.destroy_process_group()
