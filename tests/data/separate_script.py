"""A training script for one device, started on several ranks: no word of clusterrun in it."""

import os

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.rand(8, 4)).sum().backward()
    optimizer.step()
print(f"trained, RANK={os.environ['RANK']}", flush=True)
