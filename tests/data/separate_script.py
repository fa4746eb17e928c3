"""A training script for one device, started on several ranks: no word of clusterrun in it."""

import os

import torch

model = torch.nn.Linear(4, 1)
for _ in range(3):
    model.zero_grad()
    model(torch.rand(8, 4)).sum().backward()
    with torch.no_grad():  # SGD by hand: an optimizer's import takes as long as that of torch
        for weight in model.parameters():
            weight.sub_(0.1 * weight.grad)
print(f"trained, RANK={os.environ['RANK']}", flush=True)
