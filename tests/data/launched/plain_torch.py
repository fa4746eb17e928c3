"""Written for torchrun: reads the environment."""

import steps
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
network = DistributedDataParallel(steps.model())
optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
steps.train(network, optimizer, lambda loss: loss.backward(), lambda: torch.save(network.state_dict(), "saved"))
dist.destroy_process_group()
