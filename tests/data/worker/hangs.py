"""All ranks but 0 wait in a collective for ever; rank 0 sleeps. One that loses its connection creates the file LOST."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
print("waiting", flush=True)
if os.environ["RANK"] == "0":
    time.sleep(600)
try:
    dist.all_reduce(torch.ones(1))
except RuntimeError:
    if "LOST" in os.environ:
        Path(os.environ["LOST"]).touch()
    raise
