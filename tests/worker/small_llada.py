"""A folder of LLaDA-8B's layout with few, random weights, and a tokenizer without a mask token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.worker.small_models import make_tokenizer

WIDTH, HEADS, LAYERS, INNER, TOKENS = 16, 2, 2, 24, 320
CONFIG: dict[str, Any] = {  # the keys of LLaDA-8B's
    "activation_type": "silu", "alibi": False, "architectures": ["LLaDAModelLM"], "attention_dropout": 0.0,
    "attention_layer_norm": False, "block_group_size": 1, "block_type": "llama", "d_model": WIDTH,
    "embedding_dropout": 0.0, "embedding_size": TOKENS, "eos_token_id": 0, "include_bias": False,
    "include_qkv_bias": False, "input_emb_norm": False, "layer_norm_type": "rms", "mask_token_id": 5,
    "max_sequence_length": 64, "mlp_hidden_size": INNER, "mlp_ratio": 4, "model_type": "llada", "n_heads": HEADS,
    "n_kv_heads": HEADS, "n_layers": LAYERS, "pad_token_id": 0, "residual_dropout": 0.0, "rms_norm_eps": 1e-5,
    "rope": True, "rope_theta": 500000.0, "scale_logits": False, "vocab_size": TOKENS, "weight_tying": False,
    "auto_map": {"AutoConfig": "theirs.LLaDAConfig", "AutoModelForCausalLM": "theirs.LLaDAModelLM"},
}  # fmt: skip


def make_llada(folder: Path) -> None:
    """Write the folder, with weights in bf16 as LLaDA-8B's are."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    random = torch.Generator().manual_seed(0)
    shapes = {"wte": (TOKENS, WIDTH), "ff_out": (TOKENS, WIDTH), "ln_f": (WIDTH,)}
    for layer in range(LAYERS):
        block = f"blocks.{layer}."
        shapes |= {block + name: (WIDTH, WIDTH) for name in ("q_proj", "k_proj", "v_proj", "attn_out")}
        shapes |= {block + name: (INNER, WIDTH) for name in ("ff_proj", "up_proj")}
        shapes |= {block + "ff_out": (WIDTH, INNER), block + "attn_norm": (WIDTH,), block + "ff_norm": (WIDTH,)}
    weights = {
        f"model.transformer.{name}.weight": torch.randn(shape, generator=random) for name, shape in shapes.items()
    }
    save_file({name: weight.bfloat16() for name, weight in weights.items()}, folder / "model.safetensors")
    make_tokenizer().save_pretrained(folder)
