"""Samples are greedy, and the training does not notice them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from clusterrun.base.errors import WorkerError
from clusterrun.worker.models.generate import sample, sample_chat
from tests.worker.small_models import TEXT, fingerprint, make_model, make_tokenizer

CPU = torch.device("cpu")
TOKENIZER = make_tokenizer()
CHAT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"


@pytest.fixture(scope="module")
def model() -> Any:
    """A model that has learned TEXT by heart."""
    model = make_model(hidden_size=32, intermediate_size=64).train()
    tokens = torch.tensor([TOKENIZER(TEXT)["input_ids"][:48]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.config.use_cache = False
    return model


def test_the_continuation_comes_without_the_prompt_and_is_what_generate_says(model: Any) -> None:
    said = sample(model, TOKENIZER, "the quick brown", tokens=6, device=CPU)
    assert said.startswith(" fox jumps over")
    tokens = torch.tensor([TOKENIZER("the quick brown")["input_ids"]])
    theirs = model.generate(tokens, max_new_tokens=6, do_sample=False, attention_mask=torch.ones_like(tokens))
    assert TOKENIZER.decode(theirs[0]) == "the quick brown" + said


def dropping_model() -> Any:
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 300, "n_positions": 64}
    config = GPT2Config(**shape, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()


def trained(sampling: bool) -> str:
    model = dropping_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.tensor([TOKENIZER("the quick brown fox")["input_ids"]])
    for _ in range(3):
        model(input_ids=tokens, labels=tokens).loss.backward()
        if sampling:  # between backward and step: the gradients must live through it
            sample(model, TOKENIZER, "the dog", tokens=5, device=CPU)
        optimizer.step()
        optimizer.zero_grad()
    return fingerprint(model)


def test_training_with_dropout_ends_with_the_same_weights_with_and_without_samples() -> None:
    assert trained(sampling=True) == trained(sampling=False)


def test_a_model_that_draws_numbers_itself_leaves_the_generator_where_it_was() -> None:
    model = dropping_model()

    def draw(*_: object) -> None:
        torch.rand(3)

    model.register_forward_hook(draw)
    before = torch.get_rng_state()
    sample(model, TOKENIZER, "the", tokens=3, device=CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_samples_are_drawn_without_dropout_and_without_gradients() -> None:
    model = dropping_model()
    seen = []
    model.register_forward_hook(lambda module, *_: seen.append((module.training, torch.is_grad_enabled())))
    sample(model, TOKENIZER, "the dog", tokens=2, device=CPU)
    assert seen == [(False, False)] * 2


def test_each_module_keeps_its_own_mode(model: Any) -> None:
    model.train()
    model.model.norm.eval()
    sample(model, TOKENIZER, "the", tokens=2, device=CPU)
    assert model.training and model.model.layers[0].training and not model.model.norm.training
    model.model.norm.train()


def test_the_modes_come_back_after_an_error_too(model: Any) -> None:
    def fail(*_: object) -> None:
        raise OSError("no")

    model.train()
    hook = model.register_forward_hook(fail)
    with pytest.raises(OSError, match="no"):
        sample(model, TOKENIZER, "the", tokens=2, device=CPU)
    hook.remove()
    assert model.training


def test_a_prompt_longer_than_the_positions_is_cut_at_its_front(model: Any) -> None:
    long = TEXT * 3
    assert len(TOKENIZER(long)["input_ids"]) > 64
    said = sample(model, TOKENIZER, long, tokens=4, device=CPU)
    kept = TOKENIZER.decode(TOKENIZER(long)["input_ids"][-60:])
    assert said == sample(model, TOKENIZER, kept, tokens=4, device=CPU) != ""


def test_more_tokens_than_positions_fill_them_and_stop(model: Any) -> None:
    said = sample(model, TOKENIZER, "the quick", tokens=1000, device=CPU)
    assert 0 < len(TOKENIZER(said)["input_ids"]) <= 63


def test_an_end_token_ends_the_sample_and_is_not_shown(model: Any) -> None:
    brown = TOKENIZER(" fox")["input_ids"][-1]
    model.generation_config.eos_token_id = [7, brown]
    try:
        said = sample(model, TOKENIZER, "the quick brown", tokens=20, device=CPU)
    finally:
        model.generation_config.eos_token_id = 0
    assert said == " fox"


def test_an_empty_prompt_starts_at_the_start_token(model: Any) -> None:
    assert isinstance(sample(model, TOKENIZER, "", tokens=3, device=CPU), str)


def test_a_question_goes_through_the_chat_template(model: Any) -> None:
    words = make_tokenizer()
    words.chat_template = CHAT
    plain = sample(model, words, "[user]the dog[a]", tokens=5, device=CPU)
    assert sample_chat(model, words, "the dog", tokens=5, device=CPU) == plain
    with pytest.raises(WorkerError, match="needs a chat template"):
        sample_chat(model, TOKENIZER, "the dog", tokens=5, device=CPU)
