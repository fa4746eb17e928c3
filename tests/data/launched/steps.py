"""What the scripts in this folder share: a model, its batches, and a loop that saves and stops on a signal."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

WANTED = []


def model():
    """The same model on every rank; from now on both signals are noted."""
    for one in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(one, lambda signum, frame: WANTED.append(signum))
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def rows(count, seed=1):
    """Inputs and targets, the same everywhere."""
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs.sin().sum(1, keepdim=True)


def batch(step):
    """This rank's part of a step's batch."""
    inputs, targets = rows(4 * dist.get_world_size(), step)
    return inputs[dist.get_rank() :: dist.get_world_size()], targets[dist.get_rank() :: dist.get_world_size()]


def is_last(step, loss, save):
    """Report step 20; after it wait for a signal, on which all ranks stop at the same step and rank 0 saves."""
    rank = dist.get_rank()
    if step == 20:
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        sys.stdout.write(f"rank {rank} pid {os.getpid()} step 20 loss {mean.item() / dist.get_world_size():.6f}\n")
        sys.stdout.flush()
    if step >= 20:
        time.sleep(0.05)
    stops = torch.tensor([len(WANTED)])
    dist.all_reduce(stops)
    if not stops.item():
        return False
    if rank == 0:
        save()
        sys.stdout.write(f"saved at step {step}\n")
        sys.stdout.flush()
    dist.barrier()
    return True


def train(network, optimizer, backward, save):
    """The loop of the scripts that have no trainer."""
    step = 0
    while True:
        step += 1
        inputs, targets = batch(step)
        loss = torch.nn.functional.mse_loss(network(inputs), targets)
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if is_last(step, loss, save):
            return
