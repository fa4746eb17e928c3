"""Model configurations by name, to be trained from scratch without a download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class Preset:
    """A transformers architecture ("llama", "gpt2", "canine") and its configuration.

    `vocab_size` is the preset's; with `own_vocabulary` a smaller tokenizer does not change it, so that the model keeps
    the parameter count of its name.
    """

    family: str
    vocab_size: int
    settings: Mapping[str, Any]
    own_vocabulary: bool = True

    @property
    def positions(self) -> int:
        """The most tokens of a sequence."""
        return int(self.settings.get("max_position_embeddings") or self.settings["n_positions"])


def _llama(hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        **more,
    }


def _smollm2(*shape: int, rope_theta: float, initializer_range: float = 0.02) -> Preset:
    # as in the config.json of HuggingFaceTB/SmolLM2-135M, -360M and -1.7B: the released models have 8192 positions
    rope = {"rope_type": "default", "rope_theta": rope_theta}
    own: dict[str, Any] = {
        "max_position_embeddings": 8192,
        "rope_parameters": rope,
        "initializer_range": initializer_range,
    }
    return Preset("llama", 49152, _llama(*shape, **own))


CHARACTERS = "canine"  # the type of models that read characters and hash them: there is no vocabulary
# google/canine-s has width 768 and 12 layers
CANINE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "num_hash_buckets": 2048,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}

PRESETS: Mapping[str, Preset] = {
    "tiny": Preset("llama", 1024, _llama(128, 2, 4, 2, 384, max_position_embeddings=2048), own_vocabulary=False),
    "smollm2-135m": _smollm2(576, 30, 9, 3, 1536, rope_theta=100_000.0, initializer_range=576**-0.5),
    "smollm2-360m": _smollm2(960, 32, 15, 5, 2560, rope_theta=100_000.0),
    "smollm2-1.7b": _smollm2(2048, 24, 32, 32, 8192, rope_theta=130_000.0),
    "canine-tiny": Preset(CHARACTERS, 0, CANINE, own_vocabulary=False),
    # the defaults of transformers' GPT2Config are those of openai-community/gpt2, dropout 0.1 included
    "gpt2-124m": Preset("gpt2", 50257, {"n_positions": 1024}),
}


def config(name: str, vocab_size: int | None) -> PreTrainedConfig:
    """Return the configuration of a preset with room for a tokenizer of `vocab_size` tokens (None: its own)."""
    from transformers import AutoConfig

    preset = PRESETS[name]
    least = preset.vocab_size if preset.own_vocabulary or vocab_size is None else 0
    # the families' default special tokens belong to tokenizers that are not used here
    nothing = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    size = {"vocab_size": max(least, vocab_size or 0)} if preset.family != CHARACTERS else {}
    return AutoConfig.for_model(preset.family, **size, **nothing, **preset.settings)
