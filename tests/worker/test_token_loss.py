"""The loss of predicted tokens: of the positions that have one, in pieces, it is what all logits at once would give."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, GraniteConfig

from clusterrun.worker.models import masked, token_loss, torch_features
from clusterrun.worker.models.token_loss import TokenLoss, fill_up
from clusterrun.worker.training.work import IGNORED, Tensors
from tests.worker.small_models import make_model

needs_its_function = pytest.mark.skipif(torch_features.linear_cross_entropy is None, reason="torch 2.13 has it")
WAYS = ["at once", pytest.param("by torch", marks=needs_its_function), "in pieces", "filled up"]


def batch_of(labelled: float) -> Tensors:
    """Three rows, of whose positions about a share has a label."""
    random = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(0, 300, (2, 3, 20), generator=random)
    return {"input_ids": ids, "labels": labels.masked_fill(torch.rand(3, 20, generator=random) >= labelled, IGNORED)}


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def go(way: str, loss: TokenLoss, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set the way that a loss is computed; return the rows of a batch."""
    if way != "at once":
        monkeypatch.setattr(loss, "_at_once", 7)
    if way in ("in pieces", "filled up"):
        monkeypatch.setattr(torch_features, "linear_cross_entropy", None)
    if way == "filled up":  # as for compiled code, which is too dear here
        loss.compile(True)
        monkeypatch.setattr(token_loss, "_compiled_piece", lambda: token_loss.loss_of_piece)
        return 5
    return 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("labelled", [1.0, 0.3, 0.0])
def test_the_loss_of_labelled_positions_and_its_gradients_are_those_of_all_logits(
    way: str, labelled: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = make_model(), batch_of(labelled)
    loss = TokenLoss(model)
    rows = go(way, loss, monkeypatch)
    logits = model(input_ids=batch["input_ids"], use_cache=False).logits.flatten(0, 1)
    whole = cross_entropy(logits, batch["labels"].flatten(), ignore_index=IGNORED, reduction="sum")
    wanted = gradients(model, whole)
    found = loss(model, loss.prepare(batch, torch.default_generator, rows))
    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients(model, found), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_the_loss_of_masked_tokens_has_their_weights(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = make_model(), batch_of(1.0)["input_ids"]
    loss = TokenLoss(model, functools.partial(masked.label, mask_id=3, eps=0.1))
    rows = go(way, loss, monkeypatch)
    weights = masked.at_random(3, 20, 0.1, torch.Generator().manual_seed(2))
    logits = model(input_ids=ids.masked_fill(weights > 0, 3), use_cache=False).logits.flatten(0, 1)
    whole = (cross_entropy(logits, ids.flatten(), reduction="none") * weights.flatten()).sum()
    wanted = gradients(model, whole)
    found = loss(model, loss.prepare({"input_ids": ids}, torch.Generator().manual_seed(2), rows))
    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients(model, found), wanted, rtol=1e-5, atol=1e-4)


def test_in_16_bits_the_loss_of_pieces_has_all_digits_of_the_loss_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own function would give 344.0 for 342.47."""
    model, batch = make_model(), batch_of(1.0)
    loss = TokenLoss(model)
    prepared = loss.prepare(batch, torch.default_generator)
    with torch.autocast("cpu", torch.bfloat16):
        whole = loss(model, prepared)
        monkeypatch.setattr(loss, "_at_once", 7)
        found = loss(model, prepared)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(whole.item(), rel=1e-6)


def test_compiled_batches_have_few_shapes_however_many_rows_and_labels_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loss = TokenLoss(make_model())
    monkeypatch.setattr(torch_features, "linear_cross_entropy", None)
    loss.compile(True)
    shapes = set()
    for share in (0.1, 0.3, 0.5, 0.8, 1.0):
        for rows in (1, 2, 3):
            batch = {name: tensor[:rows] for name, tensor in batch_of(share).items()}
            prepared = loss.prepare(batch, torch.default_generator, 3)
            assert prepared["input_ids"].shape == (3, 20)
            shapes.add(len(prepared["targets"]))
    assert shapes <= {15, 30, 45, 60}


def test_a_model_that_does_more_than_its_head_to_the_logits_keeps_them_whole() -> None:
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = GraniteConfig(vocab_size=300, num_key_value_heads=1, logits_scaling=8.0, **shape, **ids)
    model = AutoModelForCausalLM.from_config(config)
    assert token_loss.split(model) is None and token_loss.split(make_model()) is not None
    batch = batch_of(0.3)
    loss = TokenLoss(model)
    logits = model(input_ids=batch["input_ids"], use_cache=False).logits.flatten(0, 1)
    whole = cross_entropy(logits, batch["labels"].flatten(), ignore_index=IGNORED, reduction="sum")
    torch.testing.assert_close(loss(model, loss.prepare(batch, torch.default_generator)), whole)


def test_a_batch_is_filled_up_by_its_first_row() -> None:
    assert fill_up(torch.tensor([[1, 2], [3, 4]]), 4).tolist() == [[1, 2], [3, 4], [1, 2], [1, 2]]
