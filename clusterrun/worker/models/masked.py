"""Masked diffusion over text (LLaDA, arXiv 2502.09992): bidirectional attention, and the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...base.errors import WorkerError
from ..training.work import IGNORED, Tensors
from .token_loss import Labelled

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MASK = "<|mask|>"


def add_mask_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the tokenizer's mask token; add one if it has none."""
    if tokenizer.mask_token_id is None:
        tokenizer.add_special_tokens({"mask_token": MASK})
    mask_id: int = tokenizer.mask_token_id
    return mask_id


def make_bidirectional(model: PreTrainedModel) -> None:
    """Make attention bidirectional; the model's configuration records it, also when saved.

    Raises WorkerError for a model whose code ignores that.
    """
    model.config.is_causal = False
    was_training = model.training
    model.eval()
    # a model that ignored it would still train, only worse: so check it
    with torch.no_grad():
        pair = torch.tensor([[0, 1], [0, model.config.vocab_size // 2]], device=model.device)
        first = model(input_ids=pair, use_cache=False).logits[:, 0]
    model.train(was_training)
    if torch.equal(first[0], first[1]):
        raise WorkerError(
            f"{type(model).__name__} does not support bidirectional attention: use transformers 5.2 or"
            " later, with a Llama or GPT-2 model"
        )


def label(tensors: Tensors, random: torch.Generator, training: bool, *, mask_id: int, eps: float) -> Labelled:
    """Hide tokens of `input_ids`: the model is to predict them, with weights.

    The weighted sum of the losses (nats), divided by the number of all tokens, masked or not, estimates a bound on the
    mean of -log p(token): in training with the weights of `at_random`, to evaluate with those of `evenly`. Both draw
    from a generator of the CPU, so that the device makes no difference.
    """
    ids = tensors["input_ids"]
    rows, length = ids.shape
    weights = at_random(rows, length, eps, random) if training else evenly(rows, length, random)
    is_hidden = weights > 0
    return Labelled({"input_ids": ids.masked_fill(is_hidden, mask_id)}, ids.masked_fill(~is_hidden, IGNORED), weights)


def at_random(sequences: int, length: int, eps: float, random: torch.Generator) -> torch.Tensor:
    """For each sequence t ~ U(eps, 1): return 1/t for the tokens to be masked, each with probability t, and else 0."""
    t = eps + (1 - eps) * torch.rand(sequences, 1, generator=random)
    return (torch.rand(sequences, length, generator=random) < t) / t


def evenly(sequences: int, length: int, random: torch.Generator) -> torch.Tensor:
    """For each sequence k ~ U{1 … length}, k spread over the sequences: return length/k for k tokens, and else 0.

    The same on average as `at_random` for small eps, with a fraction of its noise.
    """
    places = (torch.rand(1, generator=random) + torch.arange(sequences) / sequences) % 1
    k = 1 + (places * length).long().clamp(max=length - 1)[:, None]
    ranks = torch.rand(sequences, length, generator=random).argsort(1).argsort(1)
    return (ranks < k) * (length / k)
