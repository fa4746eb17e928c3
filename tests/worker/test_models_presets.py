"""Presets are the models that they are named after."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from clusterrun.worker.models.presets import PRESETS, config


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("smollm2-360m", 361_821_120),
        ("smollm2-1.7b", 1_711_376_384),
        ("gpt2-124m", 124_439_808),
    ],
)
def test_a_preset_has_the_parameters_of_the_model_it_is_named_after(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config(name, None))
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "tokens", "vocab_size"),
    [
        ("tiny", None, 1024),
        ("tiny", 300, 300),
        ("tiny", 5000, 5000),
        ("smollm2-135m", 300, 49152),
        ("smollm2-135m", 50_000, 50_000),
        ("gpt2-124m", 300, 50257),
    ],
)
def test_only_tiny_takes_the_size_of_a_smaller_tokenizer(name: str, tokens: int | None, vocab_size: int) -> None:
    assert config(name, tokens).vocab_size == vocab_size


@pytest.mark.parametrize("name", PRESETS)
def test_no_preset_brings_special_tokens_of_a_tokenizer_it_does_not_have(name: str) -> None:
    made = config(name, 300)
    assert (made.bos_token_id, made.eos_token_id, made.pad_token_id) == (None, None, None)


def test_the_rotary_base_reaches_the_configuration() -> None:
    assert config("smollm2-1.7b", None).rope_parameters["rope_theta"] == 130_000
