"""Says which rank it is and where; with a file's name, it waits for the file. It imports no torch."""

import os
import sys
import time
from pathlib import Path

env = os.environ
print(f"rank {env['RANK']} of node {env['NODE_RANK']} on {env['SLURMD_NODENAME']}", flush=True)
while sys.argv[1:] and not Path(sys.argv[1]).exists():
    time.sleep(0.05)
