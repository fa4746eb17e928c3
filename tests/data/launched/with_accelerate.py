"""Written for accelerate."""

import steps
import torch
from accelerate import Accelerator

accelerator = Accelerator()
network = steps.model()
network, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=0.05))
steps.train(network, optimizer, accelerator.backward, lambda: accelerator.save(network.state_dict(), "saved"))
accelerator.end_training()
