"""A small Llama written as a GGUF file, with its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import dequantize, quantize
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.worker.small_models import END

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
#: The names of a llama's tensors in GGUF files.
LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def gguf_name(name: str) -> str:
    if name in WHOLE:
        return WHOLE[name]
    layer, _, part = name.removeprefix("model.layers.").removesuffix(".weight").partition(".")
    return f"blk.{layer}.{LAYER[part]}.weight"


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key projection in the order of GGUF files, whose rotary halves take turns."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(file: Path, model: PreTrainedModel, words: PreTrainedTokenizerFast) -> None:
    """Write the model with its embedding in Q4_1, which also changes the model's own embedding to what can be read."""
    config, vocabulary = model.config, json.loads(words.backend_tokenizer.to_str())["model"]
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(list(vocabulary["vocab"]))
    writer.add_token_types([TokenType.CONTROL if token == END else TokenType.NORMAL for token in vocabulary["vocab"]])
    writer.add_token_merges([" ".join(merge) for merge in vocabulary["merges"]])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add(0)
    writer.add_chat_template(TEMPLATE)
    embedding = model.get_input_embeddings().weight
    packed = quantize(embedding.detach().numpy(), GGMLQuantizationType.Q4_1)
    embedding.data = torch.from_numpy(dequantize(packed, GGMLQuantizationType.Q4_1).copy())
    writer.add_tensor("token_embd.weight", packed, raw_dtype=GGMLQuantizationType.Q4_1)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        if name != "model.embed_tokens.weight":
            part = name.split(".")[-2]
            weight = interleaved(parameter.detach(), heads[part]) if part in heads else parameter.detach()
            writer.add_tensor(gguf_name(name), weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
