"""Rank 0 works for a minute, rank 2 returns at once, and rank 1, which has a SIGTERM handler of its own, after it."""

import os
import signal
import time

rank = os.environ["RANK"]
signal.signal(signal.SIGTERM, lambda *_: None)
time.sleep({"0": 60, "1": 2, "2": 0}[rank])
print("returned", os.getpid(), flush=True)
