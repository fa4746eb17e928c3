"""Labelled texts: read, split, tokenized once, and batched with padding to the longest text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...base.errors import WorkerError
from ...base.units import plural
from ..rank.distenv import DistEnv
from ..training.sampler import seed_of
from ..training.work import Batch
from . import prepared, targets
from .formats import shown
from .prepared import Corpus, marks
from .sources import PYDOC
from .targets import Example, Group
from .tokenizer import digest, train_bpe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BUILTIN = "builtin:labelled"
BUILTIN_TARGETS = ("kind", "topic")
# settings that the tensors depend on
CACHE_KEYS = ("model", "vocab", "seq_len", "text_cols", "formatter", "on_bad_row")
NAMED = 5  # unseen classes to name in a message


class Labelled:
    """Texts with a class in each group: sample i is text i."""

    def __init__(self, tokens: torch.Tensor, offsets: torch.Tensor, labels: torch.Tensor, pad_id: int) -> None:
        self._tokens = tokens
        self._offsets = offsets
        self._labels = labels
        self._pad_id = pad_id

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return (texts, longest) input ids and attention mask, padded on the right, and (texts, groups) labels."""
        chosen = torch.tensor(list(indices))
        starts = self._offsets[chosen]
        lengths = self._offsets[chosen + 1] - starts
        input_ids = torch.full((len(chosen), int(lengths.max())), self._pad_id)
        for row, start, length in zip(input_ids, starts.tolist(), lengths.tolist(), strict=True):
            row[:length] = self._tokens[start : start + length]
        attention_mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
        labels = self._labels[chosen].long()
        tensors = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        return Batch(tensors, float((labels >= 0).sum()), int(lengths.sum()))


def prepare(
    config: Any, tokenizer: PreTrainedTokenizerBase | None, root: Path, dist: DistEnv
) -> tuple[Corpus, tuple[Group, ...], list[str]]:
    """Read and tokenize the labelled texts, or load them from the cache folder `root`; a collective.

    `config` has the settings of the task `classify`. Return the texts, the groups of their classes, and lines to print.
    Without a tokenizer one of `config.vocab` tokens is trained on the texts. Without `val_data` a share of
    `config.held_out` is taken out of the rows by a permutation of `config.seed`.
    """
    key: dict[str, Any] = {}
    if dist.rank == 0:
        key = {"name": "classify", "data": marks(*_data(config)), "targets": _target_cols(config)}
        key |= {name: getattr(config, name) for name in CACHE_KEYS}
        key["split"] = None if config.val_data else [config.held_out, config.seed]
        key["tokenizer"] = digest(tokenizer)
    folder, tensors = prepared.prepare(root, key, lambda folder: _make(config, tokenizer, folder), dist)
    if tokenizer is None:
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.add_special_tokens({"pad_token": tokenizer.eos_token or "<|pad|>"})
    tokenizer.padding_side = "right"  # as in training: it matters where positions are absolute
    notes = json.loads((folder / "notes.json").read_text(encoding="utf-8"))

    def samples(part: str) -> Labelled:
        tokens, offsets, answers = (tensors[f"{part}.{name}"] for name in ("tokens", "offsets", "labels"))
        return Labelled(tokens, offsets, answers, tokenizer.pad_token_id)

    corpus = Corpus(tokenizer, samples("train"), samples("held_out"), folder.name)
    return corpus, targets.groups_of(notes["targets"]), notes["said"]


def _data(config: Any) -> tuple[list[str], list[str]]:
    """Return the sources of the rows to train on, and of those to evaluate on (none: to be split off)."""

    def named(data: str | tuple[str, ...]) -> list[str]:
        names = [data] if isinstance(data, str) else data
        return [BUILTIN if name == PYDOC else name for name in names if name]

    return named(config.data), named(config.val_data)


def _target_cols(config: Any) -> tuple[str, ...]:
    builtin = _data(config)[0] == [BUILTIN]
    return tuple(filter(None, config.target_cols)) or (BUILTIN_TARGETS if builtin else ())


def _make(config: Any, tokenizer: PreTrainedTokenizerBase | None, folder: Path) -> dict[str, torch.Tensor]:
    """Return `tokens`, `offsets` (one more than texts) and `labels` (texts, groups) of both parts.

    Saves a newly trained tokenizer in `folder`, and notes.json: the meaning of the outputs, and lines to print.
    """
    formatter = targets.find_formatter(config.formatter, config.text_cols)
    target_cols = _target_cols(config)
    sources, others = _data(config)
    train, skipped, doubts = targets.read_examples(sources, formatter, target_cols, on_bad_row=config.on_bad_row)
    if others:
        held_out, more, _ = targets.read_examples(others, formatter, target_cols, on_bad_row=config.on_bad_row)
        skipped += more
    else:
        train, held_out = _split(train, config)
    if tokenizer is None:
        tokenizer = train_bpe((example.text for example in train), config.vocab)
        tokenizer.save_pretrained(folder)
    groups = targets.find_groups(train, target_cols, formatter.parts)
    tensors: dict[str, torch.Tensor] = {}
    cut = 0
    unseen: list[str] = []
    for part, examples in (("train", train), ("held_out", held_out)):
        ids, longer = _encode(tokenizer, examples, config.seq_len)
        table, unseen = targets.labels(examples, groups)
        lengths = torch.tensor([0, *map(len, ids)])
        tensors[f"{part}.tokens"] = torch.tensor([i for text in ids for i in text], dtype=torch.int32)
        tensors[f"{part}.offsets"] = lengths.cumsum(0)
        tensors[f"{part}.labels"] = torch.tensor(table, dtype=torch.int32)
        cut += longer
    line = f"{plural(len(train), 'text')} to train on, {len(held_out):,} held out"
    line += f"; {cut:,} truncated to {config.seq_len} tokens" if cut else ""
    line += f"; {plural(skipped, 'bad row')} skipped" if skipped else ""
    notes = {"targets": targets.describe(groups), "said": [line, *doubts, *_warning(unseen)]}
    (folder / "notes.json").write_text(json.dumps(notes), encoding="utf-8")
    return tensors


def _warning(unseen: Sequence[str]) -> list[str]:
    """Return a line with the held-out classes that have no training rows, if any."""
    more = f" and {len(unseen) - NAMED:,} more" if len(unseen) > NAMED else ""
    named = ", ".join(map(shown, unseen[:NAMED]))
    return [f"classes without training rows (their held-out rows count as wrong): {named}{more}"] if unseen else []


def _split(examples: list[Example], config: Any) -> tuple[list[Example], list[Example]]:
    count = max(1, round(len(examples) * config.held_out))
    if count >= len(examples):
        rows = plural(len(examples), "row")
        raise WorkerError(f"held_out={config.held_out:g} leaves no rows to train on (the data has {rows})")
    generator = torch.Generator().manual_seed(seed_of(config.seed, "split"))
    chosen = set(torch.randperm(len(examples), generator=generator)[:count].tolist())
    parts: tuple[list[Example], list[Example]] = ([], [])
    for number, example in enumerate(examples):
        parts[number in chosen].append(example)
    return parts


def _encode(tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], most: int) -> tuple[list[list[int]], int]:
    """Return the token ids of the texts, as the tokenizer gives them, and how many were cut at `most` tokens."""
    ids = tokenizer([example.text for example in examples], verbose=False)["input_ids"]
    longer = [number for number, text in enumerate(ids) if len(text) > most]
    for number in longer:
        ids[number] = tokenizer(examples[number].text, truncation=True, max_length=most)["input_ids"]
    tokenizer.backend_tokenizer.no_truncation()  # else the truncation is saved with the tokenizer
    for example, text in zip(examples, ids, strict=True):
        if not text:
            raise WorkerError(f"{example.where}: the tokenizer produces no tokens for {example.text!r:.60}")
    return ids, len(longer)
