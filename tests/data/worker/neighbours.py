"""Shows what a script sees of Python: its neighbours, its name, its arguments; forks; exits with a text."""

import os
import pickle
import signal
import sys
from datetime import timedelta

import torch.distributed as dist
import train


class Thing:
    pass


print(train.WHO, __name__, os.path.basename(__file__), sys.argv, sys.path[0] == os.path.dirname(__file__))
print("pickle", type(pickle.loads(pickle.dumps(Thing()))) is Thing, [m for m in sys.modules if m == "rendezvous"])
ends = set()
for _ in range(50):
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    os.kill(pid, signal.SIGTERM)
    ends.add(os.WTERMSIG(os.waitpid(pid, 0)[1]))
print("children", ends)
print("default", int(dist.distributed_c10d._get_default_timeout("gloo").total_seconds()))
dist.init_process_group("gloo", timeout=timedelta(seconds=77))
backend = dist.distributed_c10d._get_default_group()._get_backend(dist.torch.device("cpu"))
print("explicit", int(backend.options._timeout.total_seconds()))
dist.barrier()  # the first to leave with a status ends the others
dist.destroy_process_group()
sys.exit("that was all")
