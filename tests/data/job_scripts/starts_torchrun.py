"""Starts torchrun, as "torchrun --node-rank 0 train.py" does."""

import subprocess
import sys

sys.exit(subprocess.call([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]))
