import os

import torch.multiprocessing as mp

first = int(os.environ["NODE_RANK"]) * 2
mp.spawn(print, args=(first,), nprocs=2)
