"""Tell when this rank began and when it went on to join the others, in nanoseconds of the machine's clock."""

import os
import time

import torch
import torch.distributed as dist

began = time.monotonic_ns()
time.sleep(1.5)
joins = time.monotonic_ns()
if "MESH" in os.environ:
    dist.device_mesh.init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
else:
    dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("start", began, joins, flush=True)
dist.destroy_process_group()
