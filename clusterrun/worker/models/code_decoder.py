"""A transformer decoder that writes codes, character by character, from the states of a text."""

from __future__ import annotations

import torch
from torch import nn

LAYERS = 3
HEADS = (8, 4, 2, 1)  # the most that divide the width


class CodeDecoder(nn.Module):
    """Predicts each number of a sequence from those before it and from the text; `size` is how many numbers there are.

    Sequences are (rows, `length`), as data/codes.py makes them. `width` is that of the text's states.
    """

    def __init__(self, width: int, size: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.numbers = nn.Embedding(size, width)
        self.places = nn.Embedding(length, width)
        heads = next(heads for heads in HEADS if width % heads == 0)
        layer = nn.TransformerDecoderLayer(
            width, heads, dim_feedforward=width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerDecoder(layer, LAYERS, norm=nn.LayerNorm(width))
        self.score = nn.Linear(width, size)

    def forward(self, states: torch.Tensor, attention_mask: torch.Tensor, sequences: torch.Tensor) -> torch.Tensor:
        """Return the scores (rows, length, size) of the number that follows each one; unseen numbers are negative."""
        count = sequences.shape[1]
        places = torch.arange(count, device=sequences.device)
        later = places[None, :] > places[:, None]
        inputs = self.numbers(sequences.clamp(min=0).long()) + self.places(places)
        out = self.layers(
            inputs, states, tgt_mask=later, tgt_is_causal=True, memory_key_padding_mask=attention_mask == 0
        )
        scores: torch.Tensor = self.score(out)
        return scores

    def write(self, states: torch.Tensor, attention_mask: torch.Tensor, begin: int) -> torch.Tensor:
        """Return the likeliest sequences, number by number from `begin` on, each to its full length."""
        written = torch.full((len(states), 1), begin, device=states.device)
        while written.shape[1] < self.length:
            scores = self(states, attention_mask, written)[:, -1]
            written = torch.cat([written, scores.argmax(-1, keepdim=True)], 1)
        return written
