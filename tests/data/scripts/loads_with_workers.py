"""Saves at SIGUSR1, then at SIGTERM, while workers load its data; says who handles them. Arguments: METHOD WORKERS."""

import os
import signal
import sys
import time

import torch


class Data(torch.utils.data.Dataset):
    """Samples that take a while to load."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(1)


def note(signum, frame):
    """Handle a signal."""
    came.append(signum)
    print(signal.Signals(signum).name, "in", "the rank" if os.getpid() == RANK else "a worker", flush=True)


if __name__ == "__main__":
    came, RANK = [], os.getpid()
    signal.signal(signal.SIGUSR1, note)
    signal.signal(signal.SIGTERM, note)
    method, workers = sys.argv[1:]
    batches = iter(torch.utils.data.DataLoader(Data(), num_workers=int(workers), multiprocessing_context=method))
    next(batches)
    print("ready", flush=True)
    for wanted in (signal.SIGUSR1, signal.SIGTERM):
        while wanted not in came:
            next(batches)
        for _ in range(50):  # while it saves
            next(batches)
        print("saved", flush=True)
