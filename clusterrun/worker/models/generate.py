"""Greedy generation after a prompt, deterministic and without effect on the training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...base.errors import WorkerError
from . import attention

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def sample(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, *, tokens: int, device: torch.device
) -> str:
    """Return the model's continuation of `prompt`, without the prompt: at most `tokens` tokens, up to an end token.

    The model is on `device`. Of a prompt that does not fit the model's positions the end is kept.
    """
    return _continue(model, tokenizer, tokenizer(prompt)["input_ids"], tokens, device)


def sample_chat(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, *, tokens: int, device: torch.device
) -> str:
    """Return the assistant's answer to one user message, with the tokenizer's chat template, if any."""
    if not tokenizer.chat_template:
        raise WorkerError("sample_prompts needs a chat template, but the tokenizer has none", 2)
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return _continue(model, tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"], tokens, device)


def _continue(model: Any, tokenizer: Any, prompt: list[int], tokens: int, device: torch.device) -> str:
    import torch

    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None:
        tokens = min(tokens, positions - 1)
        prompt = prompt[-(positions - tokens) :]
    prompt = prompt or _start(tokenizer)
    ends = end_ids(model, tokenizer)
    ids, past = list(prompt), None
    with undisturbed(model, device), attention.usual(model):
        step = torch.tensor([prompt], device=device)
        for _ in range(tokens):
            out = model(input_ids=step, past_key_values=past, use_cache=True)
            step, past = out.logits[:, -1:].argmax(-1), out.past_key_values
            ids.append(int(step))
            if ids[-1] in ends:
                break
    # decoded with the prompt before it: some tokenizers drop the space at the start of a text
    before = tokenizer.decode(prompt, skip_special_tokens=True)
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text[len(before) :]


@contextlib.contextmanager
def undisturbed(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Restore the model's train modes and the random state on exit."""
    import torch

    modes = [(module, module.training) for module in model.modules()]
    cards = [device] if device.type == "cuda" else []
    model.eval()
    try:
        # no_grad, not inference_mode: the model may keep tensors that a later backward pass needs
        with torch.no_grad(), torch.random.fork_rng(cards):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _start(tokenizer: Any) -> list[int]:
    known = [i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None]
    if not known:
        raise WorkerError("an empty prompt needs a tokenizer with a bos or eos token", 2)
    return known[:1]


def end_ids(model: Any, tokenizer: Any) -> set[int]:
    """Return the ids of the tokens that end a text."""
    configured = model.generation_config.eos_token_id
    several = configured if isinstance(configured, list) else [configured]
    return {i for i in (*several, tokenizer.eos_token_id) if i is not None}
