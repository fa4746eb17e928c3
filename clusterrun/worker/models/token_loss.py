"""The loss of predicted tokens: the head runs only at positions that have a label, and for many of them in pieces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from ...base.batches import LOGITS_AT_ONCE
from ..training.work import IGNORED, Tensors
from . import attention, torch_features

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Labelled(NamedTuple):
    """What a model is given, and what it is to predict at each position; both of (rows, length).

    A label is a token or IGNORED. `weights` multiply the losses; None: all count alike.
    """

    inputs: Tensors
    labels: torch.Tensor
    weights: torch.Tensor | None = None


Label = Callable[[Tensors, torch.Generator, bool], Labelled]
OF_LOSS = ("targets", "positions", "weights")  # of a prepared batch; the other tensors are the model's arguments


def next_tokens(tensors: Tensors, random: torch.Generator, training: bool) -> Labelled:
    """Label a batch whose `labels` are already shifted; the other tensors are the model's arguments."""
    return Labelled({name: tensor for name, tensor in tensors.items() if name != "labels"}, tensors["labels"])


class TokenLoss:
    """Prepares batches on the CPU, and returns the sum of their cross-entropy (nats), for `Work`.

    `label` says what is to be predicted. `documents` has the most documents of a packed row, and the tokens of the
    longest document: the attention then gets their bounds. With None it uses a mask.
    """

    def __init__(
        self, model: PreTrainedModel, label: Label = next_tokens, documents: tuple[int, int] | None = None
    ) -> None:
        self._label = label
        self._documents = documents
        self._parts = split(model)
        self._at_once = max(1, LOGITS_AT_ONCE // model.config.vocab_size)  # positions, as many as one piece has
        self._is_compiled = False

    def compile(self, wanted: bool) -> None:
        """Compile the loss of a piece, or no longer: else its logits pass through memory several times."""
        self._is_compiled = wanted

    def prepare(self, tensors: Tensors, random: torch.Generator, rows: int = 0, training: bool = True) -> Tensors:
        """Return what the loss takes of a batch: the model's arguments, and the positions that have a label.

        With `rows` the batch is filled up to so many, so that compiled code fits all of them. For a compiled head the
        labels are filled up to whole pieces, or to quarters of a small batch.
        """
        inputs, labels, weights = self._label(tensors, random, training)
        flat = labels.flatten()
        positions = (flat != IGNORED).nonzero().flatten()
        total = max(rows, len(labels)) * labels.shape[1]
        is_everywhere = len(positions) == total
        parts = min(self._at_once, -(-total // 4)) if self._is_compiled else 1
        missing = -len(positions) % parts if len(positions) else parts
        of_loss = {"targets": pad(flat if is_everywhere else flat[positions], missing, IGNORED)}
        if missing or not is_everywhere:
            of_loss["positions"] = pad(positions, missing, 0)
        if weights is not None:
            of_loss["weights"] = pad(weights.flatten()[positions], missing, 0)
        if rows:
            inputs = {name: fill_up(tensor, rows) for name, tensor in inputs.items()}
        if self._documents:
            inputs["cu_seq_lens_q"] = attention.document_bounds(inputs["position_ids"], self._documents[0])
        return inputs | of_loss

    def __call__(self, model: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
        """Return the sum of the losses of a prepared batch."""
        inputs: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if name not in OF_LOSS}
        if self._documents:
            inputs["max_length_q"] = self._documents[1]
        targets, positions, weights = tensors["targets"], tensors.get("positions"), tensors.get("weights")
        if self._parts is None:
            logits = chosen(model(**inputs, use_cache=False).logits.flatten(0, 1), positions)
            return loss_of_logits(logits, targets, weights)
        body, head = self._parts
        hidden = body(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)
        loss: torch.Tensor = self._loss_of_head(hidden, head, targets, positions, weights)
        return loss

    @torch.compiler.disable  # torch's own function runs eagerly in compiled code, and keeps more there
    def _loss_of_head(
        self,
        hidden: torch.Tensor,
        head: torch.nn.Linear,
        targets: torch.Tensor,
        positions: torch.Tensor | None,
        weights: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the loss of (positions, width) hidden states: in one piece where their logits are few."""
        hidden, count = chosen(hidden, positions), self._at_once
        piece: Any = _compiled_piece() if self._is_compiled else loss_of_piece
        if len(hidden) <= count:
            loss: torch.Tensor = piece(hidden, head.weight, head.bias, targets, weights)
            return loss
        if torch_features.linear_cross_entropy is not None and not _is_half(hidden):
            return _loss_by_torch(hidden, head, targets, weights, count)
        of_pieces = [None] * -(-len(targets) // count) if weights is None else weights.split(count)
        losses = [
            checkpoint(piece, states, head.weight, head.bias, *labels, use_reentrant=False, preserve_rng_state=False)
            for states, *labels in zip(hidden.split(count), targets.split(count), of_pieces, strict=True)
        ]
        return torch.stack(losses).sum()


def chosen(rows: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    """Return the rows at some positions; None: all."""
    return rows if positions is None else rows.index_select(0, positions)


def loss_of_piece(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    weights: torch.Tensor | None,
) -> torch.Tensor:
    """Return the summed loss of (positions, width) hidden states under a head."""
    return loss_of_logits(linear(hidden, weight, bias), targets, weights)


@functools.cache
def _compiled_piece() -> Any:
    return torch.compile(loss_of_piece, dynamic=False)


def loss_of_logits(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Return the summed loss of (positions, vocabulary) logits."""
    if weights is None:
        return cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")
    return (cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="none") * weights).sum()


def _loss_by_torch(
    hidden: torch.Tensor, head: torch.nn.Linear, targets: torch.Tensor, weights: torch.Tensor | None, count: int
) -> torch.Tensor:
    """Return the summed loss in float32, of pieces whose gradients torch computes together with them."""
    assert torch_features.linear_cross_entropy is not None
    losses = torch_features.linear_cross_entropy(
        hidden,
        head.weight,
        targets,
        linear_bias=head.bias,
        reduction="sum" if weights is None else "none",
        ignore_index=IGNORED,
        options=torch_features.LinearCrossEntropyOptions(batch_chunk_size=count),
    )
    return losses if weights is None else (losses * weights).sum()


def _is_half(hidden: torch.Tensor) -> bool:
    """Return whether the head computes in 16 bits: torch's function would round the sum of losses to 8 of them."""
    return hidden.dtype != torch.float32 or torch.is_autocast_enabled(hidden.device.type)


@torch.no_grad()
def split(model: PreTrainedModel) -> tuple[torch.nn.Module, torch.nn.Linear] | None:
    """Return a model's layers and its head, None if its logits are not what the head makes of the layers' output."""
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model  # a model with LoRA around it
    head = whole.get_output_embeddings() if hasattr(whole, "get_output_embeddings") else None
    body = getattr(whole, "base_model", whole)
    if type(head) is not torch.nn.Linear or body is whole:
        return None
    ids = torch.arange(8, device=head.weight.device)[None] % model.config.vocab_size
    was_training = model.training
    model.eval()
    logits = model(input_ids=ids, use_cache=False).logits
    by_parts = head(body(input_ids=ids, use_cache=False).last_hidden_state)
    model.train(was_training)
    return (body, head) if torch.allclose(logits, by_parts, rtol=1e-5, atol=1e-5) else None


def pad(values: torch.Tensor, missing: int, value: int) -> torch.Tensor:
    """Return a 1-D tensor with so many more values at its end."""
    return torch.nn.functional.pad(values, (0, missing), value=value) if missing else values


def fill_up(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a tensor with its first row again at the end, up to so many rows: they get no loss."""
    return torch.cat([tensor, tensor[:1].expand(rows - len(tensor), *tensor.shape[1:])])
