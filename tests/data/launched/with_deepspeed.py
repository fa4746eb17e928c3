"""Written for deepspeed, with the arguments that its launcher adds."""

import argparse

import deepspeed
import steps
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()

deepspeed.init_distributed("gloo")
network = steps.model()
engine, optimizer, _, _ = deepspeed.initialize(
    args=args,
    model=network,
    optimizer=torch.optim.SGD(network.parameters(), lr=0.05),
    config={"train_micro_batch_size_per_gpu": 4},
)
step = 0
while True:
    step += 1
    inputs, targets = steps.batch(step)
    loss = torch.nn.functional.mse_loss(engine(inputs), targets)
    engine.backward(loss)
    engine.step()
    if steps.is_last(step, loss, lambda: torch.save(network.state_dict(), "saved")):
        break
dist.destroy_process_group()
