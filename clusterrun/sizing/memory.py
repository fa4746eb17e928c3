"""The memory of one GPU under DDP or FSDP, by part. Pure.

The model: fp32 weights, gradients and two Adam moments, as under mixed precision by autocast; activations of one micro
batch with fused attention and no activation checkpointing; logits over the whole vocabulary, which the shipped tasks
compute for some thousand tokens at once only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from clusterrun.base.batches import LOGITS_AT_ONCE
from clusterrun.base.gpus import GIB

_ADAM = 8  # bytes per parameter: two fp32 moments
_FP32 = 4
_CAST = 2  # autocast keeps a 16-bit copy of the weights during a forward pass
# bytes per token, layer and unit of width. 16 bit: 34 is the textbook transformer with fused kernels (arXiv
# 2205.05198); transformers under autocast keeps norms and residuals in fp32 and every product of the MLP
_PER_UNIT = {True: (34, 80), False: (60, 110)}
# bytes per token and entry of the vocabulary: the logits in 16 bit and fp32; and their softmax and gradient
_PER_LOGIT = {True: (6, 14), False: (8, 16)}
_VOCABULARIES = (32_000, 128_000)
_GATHERED = 2  # layers at once under FSDP: the one that is computed and the next
_OTHER = (GIB // 2, 2 * GIB)  # CUDA context, NCCL's buffers, what the allocator cannot use


Span = tuple[float, float]
"""A range in bytes: its low and high end."""


@dataclass(frozen=True)
class ModelSize:
    """A model: parameters, layers and width; ``vocabulary`` 0 means unknown, then the memory's range is wider."""

    parameters: int
    layers: int
    width: int
    vocabulary: int = 0


class MemoryEstimate(NamedTuple):
    """The memory of one GPU in bytes, by part."""

    weights: Span
    gradients: Span
    optimizer: Span
    activations: Span
    other: Span

    @property
    def total(self) -> Span:
        return sum(low for low, _ in self), sum(high for _, high in self)


def guess_shape(parameters: int) -> ModelSize:
    """Return the shape that a transformer of this many parameters usually has: the width is 128 x layers."""
    layers = max(1, round((parameters / (12 * 128**2)) ** (1 / 3)))
    return ModelSize(parameters, layers, 128 * layers)


def estimate_memory(
    model: ModelSize,
    micro_batch: int,
    seq_len: int,
    precision: str,
    *,
    gradient_copies: int = 1,
    whole_logits: bool = True,
    shards: int = 1,
) -> MemoryEstimate:
    """Return the memory of one GPU for a micro batch of sequences of ``seq_len`` tokens.

    ``gradient_copies`` is 2 for DDP without ``gradient_as_bucket_view``. ``whole_logits``: those of all tokens exist at
    once. ``shards`` is the number of GPUs over which the model is divided: 1 under DDP. FSDP gathers the layers in
    turn, or keeps the whole model gathered where it fits.
    """
    half, tokens, n = precision != "fp32", micro_batch * seq_len, model.parameters
    vocabularies = (model.vocabulary, model.vocabulary) if model.vocabulary else _VOCABULARIES
    most_logits = math.inf if whole_logits else LOGITS_AT_ONCE
    low, high = (
        tokens * model.layers * model.width * per_unit + min(tokens * vocabulary, most_logits) * per_logit
        for per_unit, per_logit, vocabulary in zip(_PER_UNIT[half], _PER_LOGIT[half], vocabularies, strict=True)
    )
    own = n // shards
    layers, size = min(n, _GATHERED * n // model.layers), _CAST if half else _FP32
    gathered = (0, _CAST * half * n) if shards == 1 else (size * layers, size * n)
    more_gradients = (0, _FP32 * n * (gradient_copies - 1)) if shards == 1 else (0, _FP32 * layers)
    return MemoryEstimate(
        weights=_plus(_FP32 * own, gathered),
        gradients=_plus(_FP32 * own, more_gradients),
        optimizer=(_ADAM * own, _ADAM * own),
        activations=(low, high),
        other=_OTHER,
    )


def _plus(size: int, more: Span) -> Span:
    return size + more[0], size + more[1]


def memory_verdict(estimate: MemoryEstimate, device_bytes: float) -> str:
    """Return whether it fits: ``yes``, ``maybe``, ``no``, or ``never`` if one sample would not fit either."""
    low, high = estimate.total
    if high <= device_bytes:
        return "yes"
    if low <= device_bytes:
        return "maybe"
    return "no" if low - estimate.activations[0] <= device_bytes else "never"
