"""Each rank draws a bar as tqdm does, on one line that never ends, until a file is there."""

import os
import sys
import time
from pathlib import Path

print("Map: 100%|##########| 50/50 [00:01<00:00]", file=sys.stderr)
count = 0
while not Path(os.environ["GO"]).exists():
    count += 1
    bar = f"{count // 100:3}%|{'#' * (count // 1000):10}| {count}/10000 [00:10<00:50,  1.66it/s, loss=0.25]"
    print(f"\r{bar}", end="", file=sys.stderr, flush=True)
    time.sleep(0.05)
