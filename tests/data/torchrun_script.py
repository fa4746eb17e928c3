"""A DDP script in the form of torchrun's own documentation: no word of clusterrun in it."""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


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

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    data = Sums()
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    # no seed: every rank draws weights of its own, and DDP gives them those of rank 0
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(device)
    untrained = digest(model)
    model = DistributedDataParallel(model, device_ids=[local_rank] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _, (inputs, targets) in zip(range(args.steps), loader, strict=False):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device)).backward()
        optimizer.step()

    line = f"rank {dist.get_rank()} of {dist.get_world_size()} untrained {untrained}"
    line += f" trained {digest(model)} samples {data.taken}\n"
    print(line, end="", flush=True)  # in one write: another rank may write to the same pipe
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
