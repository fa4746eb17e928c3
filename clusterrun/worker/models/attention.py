"""Attention that needs no mask: causal or to both sides over a row, or within each of the documents packed into it.

A mask keeps the fast kernels away, and to see that it is not needed transformers waits for the GPU in each step. So on
a GPU the model gets a function of our own, which takes the documents' lengths: torch's variable-length attention, else
FlexAttention, else today's mask.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from ..training.precision import choose as choose_precision
from . import torch_features

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MASK, FLEX, DOCUMENTS = "", "clusterrun_flex", "clusterrun_documents"
_WIDEST_HEAD = 256  # of the flash kernels, in steps of 8
_OWN_PATTERNS = ("sliding_window", "attention_chunk_size", "attn_logit_softcapping")  # of a configuration


def install(model: PreTrainedModel, device: torch.device, precision: str, *, packed: bool) -> str:
    """Let a model on the CPU attend on `device` in the fastest way that it can; return which: MASK, FLEX or DOCUMENTS.

    `packed` rows hold several documents: with DOCUMENTS the model then has to get `cu_seq_lens_q` (`document_bounds`)
    and `max_length_q`, the tokens of the longest one.
    """
    kind = choose(model, device, packed=packed, half=choose_precision(precision, device).name != "fp32")
    return kind if kind != MASK and use(model, kind, packed=packed) else MASK


def choose(model: PreTrainedModel, device: torch.device, *, packed: bool, half: bool) -> str:
    """Return the fastest way that the device, torch and the model's configuration have."""
    if device.type != "cuda" or not _attends_everywhere(model):
        return MASK
    if not packed:
        return DOCUMENTS
    if _drops(model.config):  # neither of the two knows dropout
        return MASK
    if half and torch_features.varlen_attn and torch.cuda.get_device_capability(device) >= (8, 0) and _fits(model):
        return DOCUMENTS
    return FLEX if torch_features.FLEX_ATTENTION else MASK


def use(model: PreTrainedModel, kind: str, *, packed: bool) -> bool:
    """Set a model's attention, and return whether its output stays as it was; if not, so does its attention.

    Not every architecture hands on the documents' bounds.
    """
    from transformers import AttentionInterface
    from transformers.integrations.flex_attention import flex_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, flex_attention_mask

    def flex(module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
        return flex_attention_forward(module, query.to(value.dtype), key.to(value.dtype), value, mask, **more)

    AttentionInterface.register(DOCUMENTS, attend)
    AttentionInterface.register(FLEX, flex)
    AttentionMaskInterface.register(FLEX, flex_attention_mask)
    before = model.config._attn_implementation
    wanted = _outputs(model, packed, bounds=False) if kind == DOCUMENTS else None
    model.config._attn_implementation = kind
    if wanted is not None and not torch.allclose(_outputs(model, packed, bounds=packed), wanted, rtol=1e-4, atol=1e-4):
        model.config._attn_implementation = before
        return False
    return True


@contextlib.contextmanager
def usual(model: PreTrainedModel) -> Iterator[None]:
    """Use transformers' own attention meanwhile, as for generating: it knows masks and caches."""
    before = getattr(model.config, "_attn_implementation", None)
    if before not in (FLEX, DOCUMENTS):
        yield
        return
    model.config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        model.config._attn_implementation = before


def document_bounds(position_ids: torch.Tensor, most: int) -> torch.Tensor:
    """Return where the documents of packed rows begin, one row after the other, and the end; 1-D int32.

    Its length depends on the number of rows only, so that compiled code fits all batches: a row has at most `most`
    documents, and those that are missing are empty ones at the end.
    """
    starts = (position_ids.flatten() == 0).nonzero().flatten()
    bounds = torch.full((len(position_ids) * most + 1,), position_ids.numel(), dtype=torch.int32)
    bounds[: len(starts)] = starts.to(torch.int32)
    return bounds


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int = 0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attend over each row, or within each document (causally) if their bounds are given; transformers calls this.

    Takes (rows, heads, length, width) and returns (rows, length, heads, width).
    """
    if cu_seq_lens_q is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **more
        )
        return output
    rows, _, length, _ = query.shape
    # rotary embeddings leave queries and keys in float32 under autocast
    queries, keys, values = (t.to(value.dtype).transpose(1, 2).flatten(0, 1) for t in (query, key, value))
    within = _by_lengths if query.is_cuda else one_by_one
    return within(queries, keys, values, cu_seq_lens_q, max_length_q, scaling).unflatten(0, (rows, length)), None


def _by_lengths(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: torch.Tensor, longest: int, scale: float | None
) -> torch.Tensor:
    assert torch_features.varlen_attn is not None
    settings = torch_features.VARLEN_CAUSAL | {"scale": scale}
    if torch_features.VARLEN_GROUPS_HEADS:
        settings["enable_gqa"] = True
    else:
        key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], dim=1) for t in (key, value))
    output: torch.Tensor = torch_features.varlen_attn(query, key, value, bounds, bounds, longest, longest, **settings)
    return output


def one_by_one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: torch.Tensor, longest: int, scale: float | None
) -> torch.Tensor:
    """Return what variable-length attention does, document by document: for the CPU, which has no kernel for it.

    Tensors are (tokens, heads, width).
    """
    parts = []
    for start, end in itertools.pairwise(bounds.tolist()):
        q, k, v = (tensor[start:end].transpose(0, 1)[None] for tensor in (query, key, value))
        if start < end:
            output = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
            parts.append(output[0].transpose(0, 1))
    return torch.cat(parts)


def _attends_everywhere(model: PreTrainedModel) -> bool:
    """Return whether a model takes attention functions, and its layers attend to all that came before."""
    config, kinds = model.config, set(getattr(model.config, "layer_types", None) or ["full_attention"])
    is_open = getattr(model, "_supports_attention_backend", False) and config._attn_implementation == "sdpa"
    return is_open and kinds == {"full_attention"} and not any(getattr(config, name, None) for name in _OWN_PATTERNS)


def _drops(config: Any) -> bool:
    return any(getattr(config, name, 0.0) > 0 for name in ("attention_dropout", "attn_pdrop"))


def _fits(model: PreTrainedModel) -> bool:
    config: Any = model.config
    width: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return width <= _WIDEST_HEAD and width % 8 == 0


@torch.no_grad()
def _outputs(model: PreTrainedModel, packed: bool, bounds: bool) -> torch.Tensor:
    """Return the logits of two short rows on the CPU; packed, each has two documents."""
    ids = torch.arange(16).view(2, 8) % model.config.vocab_size
    inputs: dict[str, Any] = {"input_ids": ids}
    if packed:
        inputs["position_ids"] = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 0]])
    if bounds:
        inputs |= {"cu_seq_lens_q": document_bounds(inputs["position_ids"], 2), "max_length_q": 7}
    was_training = model.training
    model.eval()
    try:
        outputs: Any = model(**inputs, use_cache=False)
    finally:
        model.train(was_training)
    logits: torch.Tensor = outputs.logits
    return logits
