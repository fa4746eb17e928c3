"""Two processes of torch.multiprocessing.spawn add a number up; with `own`, they meet at an address of their own.

Usage: spawns.py own|given
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main(rank: int, meets_at: str) -> None:
    if meets_at == "own":
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1 + int(os.environ["RANK"]))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    value = torch.ones(1)
    dist.all_reduce(value)
    print(f"sum {value.item()}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(sys.argv[1],), nprocs=2)
