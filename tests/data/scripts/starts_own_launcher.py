"""Each rank starts a torchrun below it, whose two ranks add a number up: a world for each rank."""

import subprocess
import sys

RANK = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
time.sleep(12)
dist.destroy_process_group()
"""
with open(f"{sys.argv[1]}/rank.py", "w") as file:
    file.write(RANK)
words = ["--standalone", "--nproc-per-node", "2", file.name]
sys.exit(subprocess.call([sys.executable, "-m", "torch.distributed.run", *words]))
