"""A classifier that transformers does not have: it sees numbers beside the text, or writes codes beside the labels."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoModel, PreTrainedModel

from .code_decoder import CodeDecoder

LAYOUT = "clusterrun"  # the key in config.json: `features`, `size` and `length` of Classifier
#: Parts of an encoder that do not lead to its pooled state, by the model's type: they get no gradient from it.
BESIDE_POOLED = {"canine": ("projection.", "final_char_encoder.")}


class Outputs(NamedTuple):
    """`logits` (texts, outputs), and of a decoder `codes` (texts, length, numbers)."""

    logits: torch.Tensor
    codes: torch.Tensor | None = None


class Classifier(PreTrainedModel):  # type: ignore[misc]
    """An encoder, a linear layer on the text's state, and what the layout in the configuration adds.

    The text's state is the encoder's pooled one if it has that, else the last token's. With `features` a hidden layer
    joins them to it. With a `length` there is a decoder for sequences of that many numbers, each below `size`.
    The encoder's weights have the names that they have alone, so that AutoModel loads them from the folder.
    """

    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True  # what the encoder supports counts

    def __init__(self, config: Any, encoder: Any = None) -> None:
        encoder = encoder or AutoModel.from_config(copy.deepcopy(config), dtype=torch.float32)
        super().__init__(config)
        self.base_model_prefix = encoder.base_model_prefix
        self.add_module(self.base_model_prefix, encoder)
        layout, width = getattr(config, LAYOUT), config.hidden_size
        features = layout["features"]
        self.join = nn.Linear(width + features, width) if features else None
        self.score = nn.Linear(width + features + (width if features else 0), config.num_labels)
        self.decoder = CodeDecoder(width, layout["size"], layout["length"]) if layout["length"] else None

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        features: torch.Tensor | None = None,
        codes: torch.Tensor | None = None,
    ) -> Outputs:
        """Return the outputs; with `codes` (texts, length) those of the decoder for each of its numbers too."""
        states, pooled = self.encode(input_ids, attention_mask)
        written = None
        if self.decoder is not None and codes is not None:
            written = self.decoder(states, attention_mask, codes)
        with torch.autocast(pooled.device.type, enabled=False):  # numbers in 16 bits are too coarse
            pooled = pooled.to(self.score.weight.dtype)
            if self.join is not None and features is not None:
                pooled = torch.cat([pooled, features.to(pooled.dtype)], 1)
                pooled = torch.cat([pooled, nn.functional.gelu(self.join(pooled))], 1)
            return Outputs(self.score(pooled), written)

    def encode(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states of all tokens (texts, tokens, width), and that of each text (texts, width)."""
        encoder = getattr(self, self.base_model_prefix)
        out = encoder(input_ids=input_ids, attention_mask=attention_mask)
        states = out.last_hidden_state
        pooled = getattr(out, "pooler_output", None)
        if pooled is None:
            last = attention_mask.sum(1) - 1
            pooled = states[torch.arange(len(states), device=states.device), last]
        return states, pooled


def around(encoder: Any, outputs: int, layout: dict[str, int], seed: int) -> Classifier:
    """Return a classifier with `outputs` around an encoder, its own weights drawn from `seed`."""
    config = copy.deepcopy(encoder.config)
    config.num_labels = outputs
    setattr(config, LAYOUT, layout)
    torch.manual_seed(seed)
    return Classifier(config, encoder)


def freeze_unreached(model: Any, *, uses_states: bool) -> None:
    """Freeze what no gradient reaches, which DDP would wait for: an encoder's parts beside its pooled state."""
    beside = () if uses_states else BESIDE_POOLED.get(model.config.model_type, ())
    prefix = f"{model.base_model_prefix}."
    for name, parameter in model.named_parameters():
        if name.removeprefix(prefix).startswith(beside):
            parameter.requires_grad_(False)
