"""Evaluation on the held-out samples, split over the ranks."""

from __future__ import annotations

import math
from typing import Any

import torch

from .compiling import eagerly
from .consensus import Consensus
from .feed import prepared
from .precision import Precision
from .sampler import seed_of
from .sizes import BatchSizes
from .work import Work


@torch.no_grad()
def evaluate(
    model: torch.nn.Module,
    work: Work,
    sizes: BatchSizes,
    config: Any,
    precision: Precision,
    device: torch.device,
    consensus: Consensus,
    rank: int,
) -> dict[str, float]:
    """Return `val_loss` (nats per unit of weight) and the task's own measures, the same numbers on every rank.

    At most `config.eval_samples` samples are used, evenly spread, the same ones each time. A loss that draws random
    numbers is seeded by micro batch, so that evaluations can be compared. All ranks run the model equally often, as
    FSDP needs: one without samples left runs it on some that do not count.
    """
    indices = spread(len(work.held_out), config.eval_samples)
    micro = sizes.micro_batch_size
    chunks = [indices[i : i + micro] for i in range(0, len(indices), micro)]
    totals = torch.zeros(2, dtype=torch.float64)
    was_training = work.model.training
    work.model.eval()
    for i in range(rank, math.ceil(len(chunks) / sizes.world_size) * sizes.world_size, sizes.world_size):
        batch = work.held_out.batch(chunks[i] if i < len(chunks) else [0])
        torch.manual_seed(seed_of(config.seed, "evaluation", i))
        tensors = prepared(work, batch, device, training=False)
        with precision.autocast(), eagerly(model):
            sums = torch.tensor([model(tensors).item(), batch.weight], dtype=torch.float64)
            if work.measure is not None:
                sums = torch.cat([sums, model(tensors, work.measure).cpu()])
        totals = totals.new_zeros(len(sums)) if len(totals) < len(sums) else totals
        totals += sums if i < len(chunks) else 0
    work.model.train(was_training)
    val_loss, val_weight, *measured = consensus.sum(totals.tolist())
    found = {"val_loss": val_loss / val_weight if val_weight else math.nan}
    if work.summarize is not None:
        found |= work.summarize(torch.tensor(measured, dtype=torch.float64))
    return found


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` of `count` indices, evenly spread; 0 means all."""
    if not most or count <= most:
        return list(range(count))
    return [i * count // most for i in range(most)]
