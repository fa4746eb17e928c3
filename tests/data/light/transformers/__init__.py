"""Stands in for transformers in ranks of tests that interrupt a training: a model of one matrix, and no compiler.

With it on PYTHONPATH a rank of `lm` starts in two seconds of processor time in place of six. All that this project does
is the real thing: the loop, DDP, its checkpoints and signals. The real models: tests/worker, tests/integration.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from tokenizers import Tokenizer

# torch's optimizers load the compiler, to mark what is not to be compiled
_compiler: Any = types.ModuleType("torch._dynamo")
_compiler.disable = lambda function, *_, **__: function
_compiler.graph_break = lambda: None
_compiler.utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
_compiler.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
sys.modules.setdefault("torch._dynamo", _compiler)
if sys.modules["torch._dynamo"] is _compiler:
    torch._dynamo = _compiler


#: A run that a test interrupts must still train when that comes: in its first starts each pass of the training takes so
#: many seconds more, but for the first QUICK of a start (see lm_runs.slow)
STARTS, _, SECONDS = os.environ.get("LM_SLOW", "0:0").partition(":")
PAUSE = float(SECONDS) if int(os.environ.get("CLUSTERRUN_RESTART", "0")) < int(STARTS) else 0.0
QUICK = 30


class AutoConfig(types.SimpleNamespace):
    """What a preset says of its model."""

    @classmethod
    def for_model(cls, family: str, **settings: Any) -> AutoConfig:
        return cls(model_type=family, **settings)


class Model(torch.nn.Module):
    """Each token's successor, by an embedding that is its head too."""

    def __init__(self, config: AutoConfig) -> None:
        super().__init__()
        self.config = config
        self.generation_config = types.SimpleNamespace(eos_token_id=None)
        self.embed = torch.nn.Embedding(config.vocab_size, 16)
        self.mix = torch.nn.Linear(16, 16)
        self.passes = 0

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embed

    def tie_weights(self) -> None:
        pass

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> Any:
        self.passes += self.training
        if self.training and self.passes > QUICK:
            time.sleep(PAUSE)
        return types.SimpleNamespace(logits=torch.tanh(self.mix(self.embed(input_ids))) @ self.embed.weight.T)

    def save_pretrained(self, folder: Path) -> None:
        save_model(self, str(folder / "model.safetensors"))
        (folder / "config.json").write_text(json.dumps(vars(self.config), default=str))


class AutoModelForCausalLM:
    @staticmethod
    def from_config(config: AutoConfig, **_: Any) -> Model:
        return Model(config)


class PreTrainedTokenizerFast:
    """A trained tokenizer with its special tokens."""

    FILE = "tokenizer.json"
    chat_template = None

    def __init__(self, tokenizer_object: Tokenizer, eos_token: str, pad_token: str, **_: Any) -> None:
        self.backend_tokenizer = tokenizer_object
        self.eos_token_id = tokenizer_object.token_to_id(eos_token)
        self.pad_token_id = tokenizer_object.token_to_id(pad_token)
        self._special = {"eos_token": eos_token, "pad_token": pad_token}

    @classmethod
    def from_pretrained(cls, folder: Path) -> PreTrainedTokenizerFast:
        special = json.loads((folder / "special.json").read_text())
        return cls(Tokenizer.from_file(str(folder / cls.FILE)), **special)

    def save_pretrained(self, folder: Path) -> None:
        self.backend_tokenizer.save(str(folder / self.FILE))
        (folder / "special.json").write_text(json.dumps(self._special))

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [encoding.ids for encoding in self.backend_tokenizer.encode_batch(texts)]}
