"""LLaDA's sampler: fills in mask tokens, the most certain first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import attention
from .generate import end_ids, undisturbed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    tokens: int,
    rounds: int,
    device: torch.device,
) -> str:
    """Return the text that the model fills in for `tokens` masks after `prompt`, up to an end token.

    The model is on `device`; it and torch's random state are not changed. Masks in the prompt are filled too. A prompt
    that exceeds the model's positions is cut at its start.
    """
    before: list[int] = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None:
        tokens = min(tokens, positions - 1)
        before = before[-(positions - tokens) :]
    ids = torch.tensor([*before, *[tokenizer.mask_token_id] * tokens], device=device)
    with undisturbed(model, device), attention.usual(model):
        filled = unmask(model, ids, tokenizer.mask_token_id, rounds).tolist()
    ends = end_ids(model, tokenizer)
    end = next((i for i in range(len(before), len(filled)) if filled[i] in ends), len(filled))
    # decoded with the prompt before it: some tokenizers drop the space at the start of a text
    start = len(tokenizer.decode(filled[: len(before)], skip_special_tokens=True))
    text = tokenizer.decode(filled[:end], skip_special_tokens=True)
    return str(text)[start:]


def unmask(model: torch.nn.Module, ids: torch.Tensor, mask_id: int, rounds: int) -> torch.Tensor:
    """Return the 1-D `ids` with every mask replaced: each round predicts all and keeps the most certain.

    The masks are shared out evenly over the rounds, the first ones taking the rest; never more rounds than masks.
    """
    ids = ids.clone()
    left = int((ids == mask_id).sum())
    for remaining in range(min(rounds, left), 0, -1):
        logits: Any = model(input_ids=ids[None], use_cache=False).logits[0].float()
        logits[:, mask_id] = -torch.inf
        sureness, best = logits.log_softmax(-1).max(-1)
        keep = -(-left // remaining)
        surest = sureness.where(ids == mask_id, -torch.inf).topk(keep).indices
        ids[surest] = best[surest]
        left -= keep
    return ids
