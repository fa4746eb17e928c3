"""A loop with accelerate's Accelerator, as its documentation has it: no word of clusterrun in it."""

import argparse
import hashlib

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset


class Sums(Dataset):
    """Eight numbers and their sum; notes which samples were taken."""

    def __init__(self):
        self.rows = torch.rand(64, 8, generator=torch.Generator().manual_seed(0))
        self.taken = []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.taken.append(int(index))
        return self.rows[index], self.rows[index].sum(0, keepdim=True)


def digest(model):
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    accelerator = Accelerator()
    data = Sums()
    # no seed: every rank draws weights of its own, and prepare() gives them those of rank 0
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    untrained = digest(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
    for _, (inputs, targets) in zip(range(args.steps), loader, strict=False):
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()

    trained = digest(accelerator.unwrap_model(model))
    print(f"rank {accelerator.process_index} of {accelerator.num_processes}", end=" ")
    print(f"untrained {untrained} trained {trained} samples {data.taken}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
