"""Masked diffusion over text (LLaDA, arXiv 2502.09992): a causal model made to look both ways, and what it learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from ..errors import WorkerError
from ..work import Tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MASK = "<|mask|>"


def add_mask_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the tokenizer's mask token, which it is given as one token more where it has none."""
    if tokenizer.mask_token_id is None:
        tokenizer.add_special_tokens({"mask_token": MASK})
    return tokenizer.mask_token_id


def make_bidirectional(model: PreTrainedModel) -> None:
    """Let every position see all others; the model's configuration says so from now on, in the folder it is saved to.

    Raises WorkerError for a model whose code does not heed that.
    """
    model.config.is_causal = False
    was_training = model.training
    model.eval()
    # what is masked out by mistake would still train, as a worse model: so it is looked at
    with torch.no_grad():
        pair = torch.tensor([[0, 0], [0, 1]], device=model.device)
        first = model(input_ids=pair, use_cache=False).logits[:, 0]
    model.train(was_training)
    if torch.equal(first[0], first[1]):
        raise WorkerError(
            f"{type(model).__name__} cannot look both ways here: take a Llama or GPT-2 model, and transformers 5.2 or"
            " later"
        )


def masked_loss(model: torch.nn.Module, tensors: Tensors, mask_id: int, eps: float) -> torch.Tensor:
    """Sum (nats) over the masked tokens of `input_ids` of the cross-entropy of what was there, each over its t.

    Divided by the number of all tokens, masked or not, it estimates a bound on the mean of -log p(token). Draws from
    the default CPU generator, so that a device makes no difference.
    """
    ids = tensors["input_ids"]
    t, masked = draw(*ids.shape, eps)
    weight = (masked / t).to(ids.device, non_blocking=True)
    logits: Any = model(input_ids=ids.masked_fill(weight > 0, mask_id), use_cache=False).logits
    losses = cross_entropy(logits.float().flatten(0, 1), ids.flatten(), reduction="none")
    return (losses * weight.flatten()).sum()


@torch.compiler.disable  # compiled code would draw other numbers
def draw(sequences: int, length: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw t ~ U(eps, 1) for each sequence, (sequences, 1), and which tokens are masked, each with probability t."""
    t = eps + (1 - eps) * torch.rand(sequences, 1)
    return t, torch.rand(sequences, length) < t
