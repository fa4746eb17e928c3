"""Opens a process group, prints on both streams, and ends as its argument says: fail, kill, once, wait or well."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

mode, *words = (word for word in sys.argv[1:] if not word.startswith("--local_rank="))  # deepspeed adds it
dist.init_process_group("gloo")
rank, restarts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
total = torch.tensor([rank])
dist.all_reduce(total)
# one write: print() may write the end of the line by itself, after another process's text
sys.stdout.write(f"rank {rank} of {dist.get_world_size()}: sum {total.item()} {words}\n")
sys.stderr.write(f"error line of {rank}\n")
dist.barrier()
if rank == dist.get_world_size() - 1:
    if mode == "fail":
        sys.exit(7)
    if mode == "kill" or (mode == "once" and not restarts):
        print("last line " * 50, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
while mode != "well":
    time.sleep(0.05)
    dist.barrier()
    if mode == "once" and restarts:
        print(f"rank {rank} after a restart", flush=True)
        break
dist.destroy_process_group()  # without it, torch aborts at times while the process ends
