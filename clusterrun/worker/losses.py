"""Losses that more than one task uses."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from .work import Tensors

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
