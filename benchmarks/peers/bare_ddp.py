"""The shortest honest DDP loop over a file of tokens: what any training loop is measured against.

It logs nothing, saves nothing and cannot be resumed. At its end it writes when every few steps were over.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
for name in ("model", "tokens", "out"):
    parser.add_argument(f"--{name}", type=Path, required=True)
for name in ("steps", "micro", "seq-len", "every"):
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("--lr", type=float, required=True)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model, use_cache=False), dtype=torch.float32)
net = DistributedDataParallel(model.train(), gradient_as_bucket_view=True, broadcast_buffers=False)
matrices = [p for p in model.parameters() if p.dim() >= 2]
vectors = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=True)
tokens = load_file(args.tokens)["train"]
samples = (len(tokens) - 1) // args.seq_len
generator = torch.Generator().manual_seed(1)
order = torch.cat(
    [torch.randperm(samples, generator=generator) for _ in range(args.steps * args.micro * world // samples + 1)]
)

total, times = torch.zeros(()), {}
for step in range(1, args.steps + 1):
    lr = min(step / 10, 0.1 + 0.45 * (1 + math.cos(math.pi * max(0, step - 10) / (args.steps - 10))))
    for group in optimizer.param_groups:
        group["lr"] = args.lr * lr
    at = ((step - 1) * world + rank) * args.micro
    rows = torch.stack(
        [tokens[i * args.seq_len : (i + 1) * args.seq_len + 1] for i in order[at : at + args.micro]]
    ).long()
    loss = cross_entropy(net(rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    total += loss.detach()
    if step % args.every == 0:
        times[step] = time.time()

dist.all_reduce(total)
if rank == 0:
    found = {"times": times, "loss": total.item() / world / args.steps}
    found["parameters"] = sum(p.numel() for p in model.parameters())
    args.out.with_suffix(".0.json").write_text(json.dumps(found))
dist.destroy_process_group()
