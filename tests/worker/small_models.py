"""A model and a tokenizer that are made in milliseconds, for the tests of what loads, saves and samples them."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

END = "<|end|>"
TEXT = "the quick brown fox jumps over the lazy dog and the dog sleeps on " * 4


def make_config(**changes: Any) -> LlamaConfig:
    """A Llama of some 8,000 parameters."""
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    rest = {"vocab_size": 300, "max_position_embeddings": 64, "tie_word_embeddings": True}
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return LlamaConfig(**{**shape, **heads, **rest, **ids, **changes})


def make_model(seed: int = 1, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(make_config(**changes), dtype=torch.float32)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most 300 tokens; its one special token is number 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END)


def fingerprint(model: torch.nn.Module) -> str:
    """A hash over the names and the bytes of all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
