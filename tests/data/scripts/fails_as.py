"""Fails in a way that is asked for, on one rank while the others wait for it: fails_as.py WAY [RANK]."""

import ctypes
import os
import signal
import sys
import time


def step(way: str) -> None:
    """The line that fails."""
    if way == "cuda-memory":
        import torch

        raise torch.OutOfMemoryError(  # the words of torch 2.13; there is no GPU here to run out of memory
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which"
            " 1.01 GiB is free."
        )
    if way == "host-memory":
        import torch

        torch.empty(1 << 50)
    if way == "exception":
        raise ValueError("the batch has 7 rows, not 8")
    if way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if way == "crash":
        ctypes.string_at(0)
    if way == "import":
        import no_such_module_anywhere  # noqa: F401
    if way == "disk":
        with open("/dev/full", "w") as file:
            file.write("a checkpoint")
    if way == "sleep":
        time.sleep(600)


way, rank = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
mine = int(os.environ["RANK"])
if int(os.environ["WORLD_SIZE"]) > 1:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for number in range(3):
        print(f"step {number} loss {2.5 - number / 10}", flush=True)
        dist.all_reduce(torch.ones(1))
if mine == rank or way == "sleep":
    step(way)
if int(os.environ["WORLD_SIZE"]) > 1:
    dist.all_reduce(torch.ones(1))
