"""Written for torch.distributed.launch: takes its local rank as an argument."""

import argparse

import steps
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--local-rank", type=int, required=True)
local_rank = parser.parse_args().local_rank

dist.init_process_group("gloo")
assert local_rank == dist.get_rank() % 2  # two ranks per node
network = DistributedDataParallel(steps.model())
optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
steps.train(network, optimizer, lambda loss: loss.backward(), lambda: torch.save(network.state_dict(), "saved"))
dist.destroy_process_group()
