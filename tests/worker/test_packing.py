"""Documents in one row: each is there once, hardly a position is lost, and none knows of another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, BloomConfig, GPT2Config, OPTConfig

from clusterrun.worker.data.chat import encode
from clusterrun.worker.data.packing import Documents, best_fit, fill, keeps_apart
from clusterrun.worker.data.tokenizer import train_bpe
from clusterrun.worker.tasks import sft
from clusterrun.worker.training.work import IGNORED, next_token
from tests.worker.small_models import make_model

PAD = 0
Rows = dict[str, torch.Tensor]


def lengths_of(*sizes: int) -> torch.Tensor:
    return torch.tensor(sizes, dtype=torch.int64)


def documents_of(sizes: list[int]) -> Documents:
    """Documents whose tokens are random, with the next token as label."""
    ids = torch.randint(1, 300, (sum(sizes),), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    labels = ids.roll(-1)
    ends = torch.tensor(sizes).cumsum(0)
    labels[ends - 1] = IGNORED
    return Documents(ids, labels, torch.tensor(sizes))


def pack(sizes: list[int], capacity: int) -> tuple[Documents, Rows]:
    documents = documents_of(sizes)
    return documents, fill(documents, capacity, PAD)


def each_of(rows: Rows) -> list[tuple[list[int], list[int]]]:
    """The documents found in the rows, told apart by where positions restart: token ids and labels of each."""
    found: list[tuple[list[int], list[int]]] = []
    for ids, labels, positions, used in zip(*(rows[k].tolist() for k in (*MODEL, "used")), strict=True):
        for token, label, position in list(zip(ids, labels, positions, strict=True))[:used]:
            if position == 0:
                found.append(([], []))
            assert position == len(found[-1][0])
            found[-1][0].append(token)
            found[-1][1].append(label)
    return found


MODEL = ("input_ids", "labels", "position_ids")


# --- placing -----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 12), min_size=1, max_size=60), st.integers(12, 30))
@example([12], 12)
@example([1] * 13, 12)
def test_every_document_is_there_exactly_once_and_unbroken(sizes: list[int], capacity: int) -> None:
    documents, rows = pack(sizes, capacity)
    pieces = documents.tokens.split(sizes), documents.labels.split(sizes)
    there = sorted((ids.tolist(), labels.tolist()) for ids, labels in zip(*pieces, strict=True))
    assert sorted(each_of(rows)) == there


@given(st.lists(st.integers(1, 12), min_size=1, max_size=60))
def test_at_most_one_row_is_no_more_than_half_full(sizes: list[int]) -> None:
    _, _, used = best_fit(lengths_of(*sizes), 12)
    assert (used <= 6).sum() <= 1


def test_a_document_goes_where_the_least_room_is_left() -> None:
    rows, offsets, used = best_fit(lengths_of(3, 6, 7, 8, 2), 10)
    assert rows.tolist() == [1, 2, 1, 0, 0]  # 8 + 2, 7 + 3, 6
    assert offsets.tolist() == [7, 0, 0, 0, 8]
    assert used.tolist() == [10, 10, 6]


def test_no_documents_make_no_rows() -> None:
    rows = fill(Documents(*(torch.zeros(0, dtype=torch.int32) for _ in range(2)), lengths_of()), 8, PAD)
    assert rows["input_ids"].shape == (0, 8)


def test_many_documents_are_placed_without_looking_at_every_row() -> None:
    sizes = torch.randint(1, 2049, (100_000,), generator=torch.Generator().manual_seed(1))
    rows, _, used = best_fit(sizes, 2048)  # comparing each with each open row would take an hour
    filled = torch.zeros_like(used).scatter_add_(0, rows, sizes)
    assert torch.equal(filled, used)
    assert int(used.max()) <= 2048
    assert int(sizes.sum()) > 0.99 * 2048 * len(used)


def test_the_builtin_chats_fill_their_rows() -> None:
    chats = sft.read_conversations(sft.Config.data, "stop")[0][::3]
    tokenizer = train_bpe((said["content"] for chat in chats for said in chat.messages), 400, chat=True)
    documents, *_ = encode(chats, tokenizer, 256, on_bad_row="stop")
    _, _, used = best_fit(documents.lengths, 256)
    assert int(used.sum()) >= 0.95 * 256 * len(used)


def test_the_padding_is_a_document_of_its_own_without_labels() -> None:
    _, rows = pack([4, 3], 10)
    assert rows["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 0, 1, 2]]
    assert rows["input_ids"][0, 7:].tolist() == [PAD] * 3
    assert rows["labels"][0, 6:].tolist() == [IGNORED] * 4
    assert {name: tensor.dtype for name, tensor in rows.items()} == dict.fromkeys((*MODEL, "used"), torch.int32)


# --- what the model makes of it ----------------------------------------------------------------------------------


def losses(model: Any, **tensors: torch.Tensor) -> torch.Tensor:
    """The loss of every position, (rows, length); 0 where the label is IGNORED."""
    tensors = {name: tensor.long() for name, tensor in tensors.items()}
    labels = tensors.pop("labels")
    logits = model(**tensors, use_cache=False).logits
    return cross_entropy(logits.transpose(1, 2), labels, reduction="none")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("sizes", [[7, 5, 4, 9, 3, 6, 2], [16], [16, 4], [5, 1, 1, 1]])
@torch.no_grad()
def test_a_packed_document_has_the_loss_of_the_document_alone_at_every_position(
    attention: str, sizes: list[int]
) -> None:
    model = make_model(num_hidden_layers=2, attn_implementation=attention, initializer_range=0.5).eval()
    documents, rows = pack(sizes, 16)
    placed_rows, offsets, _ = best_fit(documents.lengths, 16)
    together = losses(model, **{name: rows[name] for name in MODEL})  # all rows in one batch
    starts = (documents.lengths.cumsum(0) - documents.lengths).tolist()
    for i, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        here = slice(start, start + size)
        alone = losses(model, input_ids=documents.tokens[here][None], labels=documents.labels[here][None])
        row, offset = int(placed_rows[i]), int(offsets[i])
        torch.testing.assert_close(together[row, offset : offset + size], alone[0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_without_restarting_positions_the_losses_would_be_others() -> None:
    model = make_model(num_hidden_layers=2, initializer_range=0.5).eval()
    _, rows = pack([7, 5, 4], 16)
    apart = losses(model, **{name: rows[name] for name in MODEL})
    mixed = losses(model, input_ids=rows["input_ids"], labels=rows["labels"])
    assert (apart - mixed).abs().max() > 0.01


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_row_that_is_mostly_padding_gives_finite_gradients(attention: str) -> None:
    model = make_model(attn_implementation=attention)
    _, rows = pack([2], 16)
    next_token(model, {name: rows[name].long() for name in MODEL}).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@torch.no_grad()
def test_what_stands_in_the_padding_changes_nothing() -> None:
    model = make_model().eval()
    _, rows = pack([7, 5], 16)
    before = losses(model, **{name: rows[name] for name in MODEL})
    rows["input_ids"][0, 12:] = 99
    assert torch.equal(losses(model, **{name: rows[name] for name in MODEL}), before)


def small(config: type, **shape: int) -> Any:
    ids = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    return AutoModelForCausalLM.from_config(config(**ids, **shape))


def test_architectures_that_keep_documents_apart_are_told_from_those_that_do_not() -> None:
    assert keeps_apart(make_model())
    assert keeps_apart(small(GPT2Config, n_embd=16, n_layer=1, n_head=2))  # with dropout
    assert not keeps_apart(small(BloomConfig, hidden_size=16, n_layer=1, n_head=2))  # takes no positions
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 32}
    assert not keeps_apart(small(OPTConfig, word_embed_proj_dim=16, **shape))  # takes them, and attends to all


def test_asking_leaves_the_model_in_its_mode() -> None:
    model = make_model().train()
    keeps_apart(model)
    assert model.training
