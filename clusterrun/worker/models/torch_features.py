"""What the installed torch has, found once: other modules ask here, never for its version."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import torch

#: torch 2.13: the loss of a head in pieces, without the logits of all positions.
linear_cross_entropy: Callable[..., torch.Tensor] | None = getattr(torch.nn.functional, "linear_cross_entropy", None)
LinearCrossEntropyOptions: Any = getattr(torch.nn, "LinearCrossEntropyOptions", None)

#: torch 2.10: attention of documents that lie one after the other, given by their lengths.
varlen_attn: Callable[..., Any] | None = None
with contextlib.suppress(ImportError):
    varlen_attn = importlib.import_module("torch.nn.attention.varlen").varlen_attn
_VARLEN = frozenset(inspect.signature(varlen_attn).parameters) if varlen_attn else frozenset()
#: torch 2.12: its keys and values may have fewer heads than the queries.
VARLEN_GROUPS_HEADS = "enable_gqa" in _VARLEN
#: The arguments by which it is causal; torch 2.10 had another one.
VARLEN_CAUSAL: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in _VARLEN else {"is_causal": True}

#: FlexAttention trains on GPUs only, and triton writes its kernels.
FLEX_ATTENTION = importlib.util.find_spec("triton") is not None
