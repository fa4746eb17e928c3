"""LLaDA-8B's layout: a Llama whose configuration and weights have other names. None of the folder's code is run.

Names of the files at huggingface.co/GSAI-ML/LLaDA-8B-Base (config.json, configuration_llada.py, modeling_llada.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.errors import WorkerError

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

KIND = "llada"  # the model_type
# Llama's names of settings, and LLaDA's
SETTINGS = {
    "hidden_size": "d_model",
    "intermediate_size": "mlp_hidden_size",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "max_position_embeddings": "max_sequence_length",
    "vocab_size": "embedding_size",
    "tie_word_embeddings": "weight_tying",
    "rms_norm_eps": "rms_norm_eps",
    "attention_dropout": "attention_dropout",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "pad_token_id",
}
# parts of LLaDA's names of weights, and Llama's, in the order in which they are replaced
WEIGHTS = {
    "model.transformer.ff_out.": "lm_head.",
    "model.transformer.wte.": "model.embed_tokens.",
    "model.transformer.ln_f.": "model.norm.",
    "model.transformer.blocks.": "model.layers.",
    ".attn_norm.": ".input_layernorm.",
    ".ff_norm.": ".post_attention_layernorm.",
    ".q_proj.": ".self_attn.q_proj.",
    ".k_proj.": ".self_attn.k_proj.",
    ".v_proj.": ".self_attn.v_proj.",
    ".attn_out.": ".self_attn.o_proj.",
    ".ff_proj.": ".mlp.gate_proj.",
    ".up_proj.": ".mlp.up_proj.",
    ".ff_out.": ".mlp.down_proj.",
}
# what makes LLaDA's blocks those of a Llama; all else that its code can do is off in its models
NEEDED = {"block_type": "llama", "activation_type": "silu", "layer_norm_type": "rms", "rope": True}
OFF = (
    "alibi",
    "attention_layer_norm",
    "bias_for_layer_norm",
    "embedding_dropout",
    "include_bias",
    "include_qkv_bias",
    "input_emb_norm",
    "residual_dropout",
    "scale_logits",
)


def config(document: Mapping[str, Any], name: str) -> LlamaConfig:
    """Return the configuration of a Llama that computes what the model of a config.json does. Raises WorkerError."""
    from transformers import LlamaConfig

    wrong = [f"{key}={document.get(key)}" for key, value in NEEDED.items() if document.get(key) != value]
    wrong += [f"{key}={document[key]}" for key in OFF if document.get(key)]
    if wrong:
        raise WorkerError(f"cannot load {name}: a LLaDA model with {', '.join(wrong)} is not supported")
    settings = {ours: document[theirs] for ours, theirs in SETTINGS.items() if document.get(theirs) is not None}
    settings.setdefault("vocab_size", document["vocab_size"])
    rope = {"rope_type": "default", "rope_theta": float(document["rope_theta"])}
    return LlamaConfig(**settings, bos_token_id=None, rope_parameters=rope, llada=dict(document))


def key_mapping(config: PreTrainedConfig) -> dict[str, str] | None:
    """Return how from_pretrained is to rename the weights of a model with this configuration; None: not at all."""
    return WEIGHTS if is_from(config) else None


def name_mask_token(tokenizer: PreTrainedTokenizerBase, document: Mapping[str, Any]) -> None:
    """Give a tokenizer the mask token of config.json, if it has none."""
    number = document.get("mask_token_id")
    if tokenizer.mask_token_id is None and isinstance(number, int):
        tokenizer.mask_token = tokenizer.convert_ids_to_tokens(number)


def is_from(config: PreTrainedConfig) -> bool:
    """Return whether a model's configuration comes from LLaDA's layout."""
    return hasattr(config, KIND)


def save(model: PreTrainedModel, folder: Path) -> None:
    """Write a model in LLaDA's layout; raises OSError."""
    from huggingface_hub import save_torch_state_dict

    weights = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    save_torch_state_dict({_their_name(name): tensor.contiguous() for name, tensor in weights.items()}, folder)
    document = {**model.config.llada, "embedding_size": model.config.vocab_size, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _their_name(name: str) -> str:
    for theirs, ours in WEIGHTS.items():
        if ours in name:
            name = name.replace(ours, theirs)
    return name
