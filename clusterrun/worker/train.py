"""The training loop: read it from top to bottom, it is all there is."""

from __future__ import annotations

import contextlib
import json
import math
import time
from typing import Any, Protocol

import torch
import torch.distributed as torch_dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from .distenv import DistEnv, RunEnv
from .errors import WorkerError

EVAL_SEQUENCES = 32  # of the held-out text, the same ones each time
FLOOR = 0.1  # the cosine ends at this share of the highest learning rate


class Config(Protocol):
    """What the loop asks of a task's configuration; batches are sequences, lengths are tokens."""

    steps: int
    seq_len: int
    global_batch: int
    lr: float
    warmup: int
    seed: int
    eval_every: int


def train(
    model: torch.nn.Module,
    train_tokens: torch.Tensor,
    val_tokens: torch.Tensor,
    config: Any,
    dist: DistEnv,
    run: RunEnv,
    device: torch.device,
) -> None:
    """Train `model` for `config.steps` steps of `config.global_batch` sequences over all ranks.

    Tokens are int64, shape (n,), the same on every rank. Rank 0 prints and writes metrics.jsonl in the run's folder.
    """
    model.to(device)
    net = model
    if dist.world_size > 1:
        net = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=config.lr,
        betas=(0.9, 0.95),
    )
    if dist.rank == 0:
        print(
            f"model {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters,"
            f" {len(train_tokens):,} training and {len(val_tokens):,} validation tokens,"
            f" global batch {config.global_batch} x {config.seq_len}",
            flush=True,
        )
    metrics = run.run_dir / "metrics.jsonl" if dist.rank == 0 and run.run_dir else None
    first_val = val = evaluate(model, val_tokens, config, dist, device)
    if dist.rank == 0:
        print(f"step {0:>{len(str(config.steps))}}/{config.steps}  val {val:.2f}", flush=True)
    began = mark = time.monotonic()
    marked = 0

    for step in range(1, config.steps + 1):
        lr = learning_rate(step, config)
        for group in optimizer.param_groups:
            group["lr"] = lr
        batch = sequences(train_tokens, step, config, dist).to(device)
        loss = mean_loss(net, batch, device)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        if step % config.eval_every and step != config.steps:
            continue
        value = average(loss.detach(), dist)
        if not math.isfinite(value):  # averaged over ranks, so that all of them stop here
            raise WorkerError(f"the loss is {value} at step {step}: try a lower lr than {config.lr:g}")
        speed = (step - marked) * config.global_batch * config.seq_len / (time.monotonic() - mark)
        val = evaluate(model, val_tokens, config, dist, device)
        mark, marked = time.monotonic(), step
        if dist.rank == 0:
            print(
                f"step {step:>{len(str(config.steps))}}/{config.steps}  loss {value:.2f}  val {val:.2f}"
                f"  lr {lr:.1e}  tok/s {speed:,.0f}",
                flush=True,
            )
        if metrics is not None:
            row = {"step": step, "loss": value, "val_loss": val, "lr": lr, "tokens_per_second": speed}
            with metrics.open("a") as file:
                file.write(json.dumps(row | {"time": time.time()}) + "\n")

    if dist.rank == 0:
        seconds = time.monotonic() - began
        print(f"validation loss {first_val:.3f} -> {val:.3f} in {config.steps} steps, {seconds:.0f} s", flush=True)


def learning_rate(step: int, config: Config) -> float:
    """Warm up in a line, then fall along a cosine to FLOOR of the highest rate; steps count from 1."""
    if step <= config.warmup:
        return config.lr * step / config.warmup
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.lr * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * progress)))


def sequences(tokens: torch.Tensor, step: int, config: Config, dist: DistEnv) -> torch.Tensor:
    """This rank's share of a step's global batch: (global_batch / world_size, seq_len + 1).

    Which text a slot of the global batch holds is a function of (seed, step, slot) alone: no loader has a state to
    save, and another world size sees the same batches.
    """
    draw = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    starts = torch.randint(len(tokens) - config.seq_len, (config.global_batch,), generator=draw)
    share = config.global_batch // dist.world_size
    mine = starts[dist.rank * share : (dist.rank + 1) * share]
    return torch.stack([tokens[s : s + config.seq_len + 1] for s in mine.tolist()])


def mean_loss(net: torch.nn.Module, batch: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Mean cross-entropy in nats of predicting each next token of (sequences, length + 1)."""
    half = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else contextlib.nullcontext()
    with half:
        logits = net(input_ids=batch[:, :-1]).logits
    return cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def evaluate(
    model: torch.nn.Module, tokens: torch.Tensor, config: Config, dist: DistEnv, device: torch.device
) -> float:
    """Mean loss over evenly spread held-out sequences, shared out over the ranks; the same number on all of them."""
    last = len(tokens) - config.seq_len - 1
    starts = torch.linspace(0, last, EVAL_SEQUENCES).long().tolist()[dist.rank :: dist.world_size]
    total = torch.zeros(2, dtype=torch.float64)
    model.eval()
    for i in range(0, len(starts), 8):
        batch = torch.stack([tokens[s : s + config.seq_len + 1] for s in starts[i : i + 8]]).to(device)
        total += torch.tensor([mean_loss(model, batch, device).item() * len(batch), len(batch)])
    model.train()
    if dist.world_size > 1:
        total = total.to(device)
        torch_dist.all_reduce(total)
    return (total[0] / total[1]).item()


def average(value: torch.Tensor, dist: DistEnv) -> float:
    """Mean of a number over all ranks."""
    if dist.world_size > 1:
        value = value.clone()
        torch_dist.all_reduce(value)
        value /= dist.world_size
    return value.item()


def share_tokens(ids: list[int], dist: DistEnv, device: torch.device) -> torch.Tensor:
    """Give rank 0's token ids to every rank, as int64 on the CPU.

    Through the process group and not a file: on a shared file system a new file may not be seen at once.
    """
    tokens = torch.tensor(ids, dtype=torch.int64)
    if dist.world_size == 1:
        return tokens
    size = torch.tensor([len(tokens)], device=device)
    torch_dist.broadcast(size, 0)
    buffer = tokens.to(device) if dist.rank == 0 else torch.empty(int(size.item()), dtype=torch.int64, device=device)
    torch_dist.broadcast(buffer, 0)
    return buffer.cpu()
