import os

import torch.multiprocessing as mp

os.environ["MASTER_ADDR"] = "localhost"
os.environ.setdefault("MASTER_PORT", "29500")
mp.spawn(print, nprocs=2)
