"""Rank 0 works on after all others have left: in a thread, an executor and an atexit handler."""

import atexit
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()


def say(text):
    time.sleep(0.7)
    os.write(1, f"{text}\n".encode())  # one write: two threads speak at the same time


if os.environ["RANK"] == "0":
    threading.Thread(target=say, args=("thread done",)).start()
    ThreadPoolExecutor(1).submit(say, "executor done")
    atexit.register(say, "atexit done")
sys.exit(0)
