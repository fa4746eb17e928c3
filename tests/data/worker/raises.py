"""Rank 1 raises; the others sleep."""

import os
import time


def broken():
    raise ValueError("no such\nthing")


if os.environ["RANK"] == "1":
    broken()
time.sleep(60)
