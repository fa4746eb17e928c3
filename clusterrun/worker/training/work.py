"""The interface between a task and the training loop, and the loss of next-token prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.functional import cross_entropy

IGNORED = -100  # label of positions without loss


def next_token(model: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
    """Return the summed cross-entropy (nats) of `labels`, already shifted, shape (sequences, length), without IGNORED.

    The other tensors are the model's arguments (`input_ids`, `position_ids` …).
    """
    inputs = {name: tensor for name, tensor in tensors.items() if name != "labels"}
    logits = model(**inputs, use_cache=False).logits
    return cross_entropy(
        logits.float().flatten(0, 1), tensors["labels"].flatten(), ignore_index=IGNORED, reduction="sum"
    )


Tensors = dict[str, torch.Tensor]


class Batch(NamedTuple):
    """One micro batch, on the CPU.

    `tensors` are the input of the task's loss. `weight` divides the sum of losses: the number of target tokens (or of
    labelled samples); 0 is allowed. `tokens` counts tokens without padding.
    """

    tensors: Tensors
    weight: float
    tokens: int


class Samples(Protocol):
    """Samples by index; the same on every rank and at any time."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return these samples (at least one) as one micro batch."""


@dataclass(frozen=True)
class Work:
    """What a task gives to the training loop.

    `loss(model, tensors)` returns the SUM of the losses over the micro batch in nats, a float32 scalar on the model's
    device, where the tensors are.
    `prepare(tensors, random, rows, training)` makes the loss's tensors of a batch's, on the CPU and perhaps in another
    thread. It draws what is random from the generator, which is seeded by (seed, step, slot), also while evaluating.
    With `rows` it fills the batch up to so many. `one_shape`: all batches then have tensors of the same shapes.
    `measure(model, tensors)` returns a 1-D float64 tensor of sums over the micro batch (correct answers, confusion
    counts …). They are added over batches and ranks, and `summarize` turns the total into named numbers.
    `sample(prompt)` generates text with the model; only rank 0 calls it.
    `fingerprint` identifies the data and the order of its samples: a checkpoint with other data is refused.
    `files` are texts by file name, saved with the finished model, as is `card`: the loop adds which step's it is.
    """

    model: torch.nn.Module
    train: Samples
    held_out: Samples
    loss: Callable[[torch.nn.Module, Tensors], torch.Tensor]
    measure: Callable[[torch.nn.Module, Tensors], torch.Tensor] | None = None
    summarize: Callable[[torch.Tensor], dict[str, float]] | None = None
    sample: Callable[[str], str] | None = None
    prepare: Callable[[Tensors, torch.Generator, int, bool], Tensors] | None = None
    one_shape: bool = False
    tokenizer: Any = None
    fingerprint: str = ""
    files: dict[str, str] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)
