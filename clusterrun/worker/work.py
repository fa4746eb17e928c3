"""Losses that more than one task uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.functional import cross_entropy

IGNORED = -100  # the label of a position that no loss is taken of


def next_token(model: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
    """Sum of cross-entropies (nats) of `labels`, shifted already, shape (sequences, length); IGNORED ones are left out.

    All other tensors are the model's own arguments (`input_ids`, `position_ids` …).
    """
    inputs = {name: tensor for name, tensor in tensors.items() if name != "labels"}
    logits = model(**inputs, use_cache=False).logits
    return cross_entropy(
        logits.float().flatten(0, 1), tensors["labels"].flatten(), ignore_index=IGNORED, reduction="sum"
    )


Tensors = dict[str, torch.Tensor]


class Batch(NamedTuple):
    """One micro batch, on the CPU.

    `tensors` is what the task's loss takes. `weight` is what the sum of losses is divided by: the number of target
    tokens (or of labelled samples), as a float; 0 is allowed. `tokens` counts the useful tokens (no padding).
    """

    tensors: Tensors
    weight: float
    tokens: int


class Samples(Protocol):
    """Samples by index; the same on every rank, and the same for the same indices at any time."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> Batch:
        """Put these samples (at least one) into one micro batch."""


@dataclass(frozen=True)
class Work:
    """All that the loop needs of a task.

    `loss(model, tensors)` gives the SUM of the losses over the micro batch in nats, a float32 scalar on the model's
    device; tensors are already there. Randomness it draws with torch's default CPU generator is a function of
    (seed, step, slot): the loop seeds it before every call, also while evaluating.
    `measure(model, tensors)` gives a 1-D float64 tensor of sums over the micro batch (correct answers, confusion
    counts …); they are added over batches and ranks and `summarize` turns the total into named numbers.
    `sample(prompt)` generates text with the model as it is now; rank 0 alone calls it.
    `fingerprint` names the data and the order of its samples: a checkpoint of other data is not resumed from.
    `files` are texts by name, put beside the finished model.
    """

    model: torch.nn.Module
    train: Samples
    held_out: Samples
    loss: Callable[[torch.nn.Module, Tensors], torch.Tensor]
    measure: Callable[[torch.nn.Module, Tensors], torch.Tensor] | None = None
    summarize: Callable[[torch.Tensor], dict[str, float]] | None = None
    sample: Callable[[str], str] | None = None
    tokenizer: Any = None
    fingerprint: str = ""
    files: dict[str, str] = field(default_factory=dict)
