"""Attention without a mask: equal to that with one, also where several documents share a row.

The kernel for documents' lengths runs on GPUs only; here `one_by_one` stands for it, and its arguments are looked at.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, MistralConfig, PreTrainedModel

from clusterrun.worker.data.packing import fill
from clusterrun.worker.models import attention, generate, masked, torch_features
from clusterrun.worker.models.attention import DOCUMENTS, FLEX, MASK, document_bounds, one_by_one, use
from clusterrun.worker.models.token_loss import TokenLoss
from clusterrun.worker.tasks.sft import Packed
from tests.worker.small_models import make_model, make_tokenizer
from tests.worker.test_packing import documents_of

GPU, CPU = torch.device("cuda"), torch.device("cpu")
SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_key_value_heads": 1}


def gpt2(**changes: Any) -> PreTrainedModel:
    return AutoModelForCausalLM.from_config(
        GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=300, n_positions=64, **changes)
    )


def packed() -> tuple[dict[str, torch.Tensor], tuple[int, int]]:
    """Rows of 24 positions, the most documents of one, and the tokens of the longest document."""
    rows = fill(documents_of([9, 5, 24, 1, 3, 11, 2, 7, 1]), 24, 0)
    names = ("input_ids", "labels", "position_ids")
    return {name: rows[name].long() for name in names}, Packed(rows).documents()


def loss_and_gradients(
    model: PreTrainedModel, documents: tuple[int, int] | None = None
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = TokenLoss(model, documents=documents)
    found = loss(model, loss.prepare(packed()[0], torch.default_generator))
    model.zero_grad()
    found.backward()
    return found.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_by_the_documents_lengths_loss_and_gradients_are_those_of_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(q: Any, k: Any, v: Any, bounds: torch.Tensor, longest: int, scale: float | None) -> torch.Tensor:
        assert bounds.diff().max() == longest
        return one_by_one(q, k, v, bounds, longest, scale)

    model, documents = make_model(), packed()[1]
    wanted = loss_and_gradients(model)
    assert use(model, DOCUMENTS, packed=True)
    monkeypatch.setattr(attention, "one_by_one", checked)
    found = loss_and_gradients(model, documents)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    unaware = loss_and_gradients(model)  # it was not told where documents end
    assert abs(unaware[0] - wanted[0]) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("both_sides", [False, True])
def test_whole_rows_give_the_same_without_a_mask(both_sides: bool) -> None:
    model = make_model()
    if both_sides:
        masked.make_bidirectional(model)
    ids = packed()[0]["input_ids"]
    wanted = model(input_ids=ids, use_cache=False).logits
    assert use(model, DOCUMENTS, packed=False)
    torch.testing.assert_close(model(input_ids=ids, use_cache=False).logits, wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_flex_attention_gives_the_same_as_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradients have no CPU version."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    model = make_model()
    rows = {name: tensor for name, tensor in packed()[0].items() if name != "labels"}
    wanted = model(**rows, use_cache=False).logits
    assert use(model, FLEX, packed=True)
    with torch._dynamo.config.patch(disable=True):  # its compiled kernel takes a C++ compiler and a minute
        found = model(**rows, use_cache=False).logits
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("version", "causal", "groups"),
    [("2.10", {"is_causal": True}, False), ("2.11", {"window_size": (-1, 0)}, False),
     ("2.12", {"window_size": (-1, 0)}, True)],
)  # fmt: skip
def test_the_kernel_gets_what_its_version_takes(
    version: str, causal: dict[str, Any], groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In torch 2.11 and before, keys and values need as many heads as queries."""
    query, key, value = torch.randn(12, 4, 8), torch.randn(12, 2, 8), torch.randn(12, 2, 8)
    bounds = torch.tensor([0, 5, 6, 12, 12], dtype=torch.int32)

    def kernel(q: Any, k: Any, v: Any, starts: Any, ends: Any, longest: int, most: int, **more: Any) -> torch.Tensor:
        assert more == causal | {"scale": 0.3} | ({"enable_gqa": True} if groups else {})
        assert (starts is ends, longest, most) == (True, 12, 12)
        assert k.shape[1] == v.shape[1] == (2 if groups else 4)
        return one_by_one(q, k, v, starts, longest, more["scale"])

    monkeypatch.setattr(torch_features, "varlen_attn", kernel)
    monkeypatch.setattr(torch_features, "VARLEN_CAUSAL", causal)
    monkeypatch.setattr(torch_features, "VARLEN_GROUPS_HEADS", groups)
    found = attention._by_lengths(query, key, value, bounds, 12, 0.3)
    torch.testing.assert_close(found, one_by_one(query, key, value, bounds, 12, 0.3))


def test_the_installed_torch_takes_what_its_kernel_is_given() -> None:
    assert set(torch_features.VARLEN_CAUSAL) <= torch_features._VARLEN or torch_features.varlen_attn is None


def test_bounds_have_one_length_whatever_the_documents() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]])
    assert document_bounds(positions, 3).tolist() == [0, 3, 5, 6, 12, 12, 12]
    assert len(document_bounds(positions.flip(0), 3)) == 7


def test_a_model_that_does_not_hand_on_the_bounds_keeps_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    attend = attention.attend

    def deaf(*inputs: Any, cu_seq_lens_q: Any = None, **more: Any) -> Any:
        return attend(*inputs, **more)

    monkeypatch.setattr(attention, "attend", deaf)
    assert not use(model, DOCUMENTS, packed=True)
    assert model.config._attn_implementation == "sdpa"
    torch.testing.assert_close(loss_and_gradients(model), loss_and_gradients(make_model()))


def test_each_device_model_and_precision_gets_what_it_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch_features, "FLEX_ATTENTION", True)
    llama = make_model(num_attention_heads=2)
    window = AutoModelForCausalLM.from_config(
        MistralConfig(vocab_size=300, num_attention_heads=2, sliding_window=4, **SHAPE)
    )
    choices: list[tuple[Any, torch.device, bool, bool, str]] = [
        (llama, CPU, True, True, MASK),
        (llama, GPU, False, False, DOCUMENTS),
        (llama, GPU, True, True, DOCUMENTS),
        (llama, GPU, True, False, FLEX),  # the kernel for lengths knows 16 bits only
        (gpt2(), GPU, True, True, MASK),  # dropout
        (gpt2(), GPU, False, True, DOCUMENTS),
        (gpt2(attn_pdrop=0.0), GPU, True, True, DOCUMENTS),
        (window, GPU, True, True, MASK),
    ]
    for model, device, packed, half, wanted in choices:
        assert attention.choose(model, device, packed=packed, half=half) == wanted
    monkeypatch.setattr(torch_features, "varlen_attn", None)
    assert attention.choose(llama, GPU, packed=True, half=True) == FLEX
    monkeypatch.setattr(torch_features, "FLEX_ATTENTION", False)
    assert attention.choose(llama, GPU, packed=True, half=True) == MASK


@pytest.mark.parametrize("kind", [DOCUMENTS, FLEX])
def test_samples_and_the_saved_model_know_nothing_of_it(kind: str, tmp_path: Path) -> None:
    model, tokenizer = make_model(), make_tokenizer()
    wanted = generate.sample(model, tokenizer, "the quick", tokens=5, device=CPU)
    use(model, kind, packed=True)
    assert generate.sample(model, tokenizer, "the quick", tokens=5, device=CPU) == wanted
    assert model.config._attn_implementation == kind
    model.save_pretrained(tmp_path)
    assert "clusterrun" not in (tmp_path / "config.json").read_text()
    assert AutoConfig.from_pretrained(tmp_path)._attn_implementation != kind


def test_one_by_one_is_each_document_alone() -> None:
    query, key, value = torch.randn(3, 9, 2, 8).unbind(0)
    bounds = [0, 4, 5, 9]
    found = one_by_one(query, key, value, torch.tensor(bounds), 9, None)
    for start, end in itertools.pairwise(bounds):
        alone = one_by_one(query[start:end], key[start:end], value[start:end], torch.tensor([0, end - start]), 9, None)
        torch.testing.assert_close(found[start:end], alone)
