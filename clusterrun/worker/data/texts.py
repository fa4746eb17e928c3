"""Running text: tokenized once, document after document, and cut into pieces of one length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...base.errors import WorkerError
from ...base.units import plural
from ..rank.distenv import DistEnv
from ..training.work import Batch
from . import prepared, sources
from .prepared import Corpus, marks
from .tokenizer import digest, train_bpe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CACHE_KEYS = ("model", "vocab", "held_out", "text_column", "on_bad_row")  # settings that the tokens depend on


class Chunks:
    """Consecutive pieces of one long text: sample i predicts tokens i x length + 1 to (i + 1) x length."""

    def __init__(self, tokens: torch.Tensor, length: int) -> None:
        self._tokens = tokens
        self._length = length

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - 1) // self._length)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return (sequences, length) input ids, and the labels one token further."""
        length = self._length
        rows = torch.stack([self._tokens[i * length : (i + 1) * length + 1] for i in indices]).long()
        targets = len(indices) * length
        return Batch({"input_ids": rows[:, :-1], "labels": rows[:, 1:]}, float(targets), targets)


def prepare(config: Any, tokenizer: PreTrainedTokenizerBase | None, root: Path, dist: DistEnv) -> Corpus:
    """Read and tokenize `config.data`, or load it from the cache folder `root`; a collective.

    Without a tokenizer one of `config.vocab` tokens is trained on the text. The last `config.held_out` of the text is
    held out, or `config.val_data`. Raises WorkerError where a part is too short for one piece of `config.seq_len`.
    """
    key = _cache_key(config, tokenizer) if dist.rank == 0 else {}
    folder, tensors = prepared.prepare(root, key, lambda folder: _tokenize(config, tokenizer, folder), dist)
    if tokenizer is None:
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    if dist.rank == 0 and "skipped" in tensors:
        skipped = plural(int(tensors["skipped"].item()), "row")
        print(f"clusterrun: skipped {skipped} that could not be parsed", flush=True)
    tokens = {name: tensors[name] for name in ("train", "held_out")}
    parts = {name: Chunks(tokens[name], config.seq_len) for name in tokens}
    for name, chunks in parts.items():
        if not len(chunks):
            raise WorkerError(
                f"the data has {sum(map(len, tokens.values()))} tokens, but the"
                f" {'training' if name == 'train' else 'held-out'} part is too short for seq_len={config.seq_len}"
            )
    return Corpus(tokenizer, parts["train"], parts["held_out"], folder.name)


def _cache_key(config: Any, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    key = {"name": "text", "data": marks(config.data, config.val_data), "tokenizer": digest(tokenizer)}
    return key | {name: getattr(config, name) for name in CACHE_KEYS}


def _tokenize(config: Any, tokenizer: PreTrainedTokenizerBase | None, folder: Path) -> dict[str, torch.Tensor]:
    """Return the two parts, each 1-D int32, and `skipped`, the number of bad rows left out, if there were any.

    A tokenizer trained here is left in `folder`.
    """
    tensors: dict[str, torch.Tensor] = {}

    def read(data: str | tuple[str, ...]) -> list[str]:
        texts, skipped = sources.read_texts(data, text_column=config.text_column, on_bad_row=config.on_bad_row)
        if skipped:
            tensors["skipped"] = tensors.get("skipped", torch.tensor(0)) + skipped
        return texts

    def encode(texts: list[str]) -> torch.Tensor:
        assert tokenizer is not None
        end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        encoded = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return torch.tensor([i for ids in encoded for i in (*ids, *end)], dtype=torch.int32)

    texts = read(config.data)
    if tokenizer is None:
        tokenizer = train_bpe(texts, config.vocab)
        tokenizer.save_pretrained(folder)
    tokens = encode(texts)
    if config.val_data:
        parts = {"train": tokens, "held_out": encode(read(config.val_data))}
    else:
        cut = int(len(tokens) * (1 - config.held_out))
        parts = {"train": tokens[:cut].clone(), "held_out": tokens[cut:].clone()}
    return parts | tensors
