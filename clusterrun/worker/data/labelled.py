"""Labelled texts: read, split, tokenized once, and batched with padding to the longest text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...base.errors import WorkerError
from ...base.units import plural
from ..rank.distenv import DistEnv
from ..training.sampler import seed_of
from ..training.work import Batch
from . import codes, groups, meaning, prepared, targets
from .formats import shown
from .meaning import Meaning
from .prepared import Corpus, marks
from .scales import features, scale_of
from .sources import PYDOC
from .targets import Example, Formatter
from .tokenizer import digest, keep_whole, train_bpe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BUILTIN = "builtin:labelled"
BUILTIN_TARGETS = ("kind", "topic")
# settings that the tensors depend on
CACHE_KEYS = ("model", "vocab", "seq_len", "text_cols", "formatter", "on_bad_row")
CACHE_KEYS_IF_SET = ("objective", "number_cols", "separator")  # so that a cache without them stays what it was
NAMED = 5  # unseen classes to name in a message


class Labelled:
    """Texts with a class in each group: sample i is text i.

    `more` are tensors with a row for each text, which come into a batch as they are. A text of a set weighs 1, others
    as much as they have answers. `molecule`: characters that a CANINE joins, 0 for other models.
    """

    def __init__(
        self,
        tokens: torch.Tensor,
        offsets: torch.Tensor,
        labels: torch.Tensor,
        pad_id: int,
        more: Mapping[str, torch.Tensor] | None = None,
        *,
        is_set: bool = False,
    ) -> None:
        self._tokens = tokens
        self._offsets = offsets
        self._labels = labels
        self._pad_id = pad_id
        self._more = more or {}
        self._is_set = is_set
        self.molecule = 0

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return (texts, longest) input ids and attention mask, padded on the right, and (texts, groups) labels."""
        chosen = torch.tensor(list(indices))
        starts = self._offsets[chosen]
        lengths = self._offsets[chosen + 1] - starts
        input_ids = torch.full((len(chosen), self._width(int(lengths.max()))), self._pad_id)
        for row, start, length in zip(input_ids, starts.tolist(), lengths.tolist(), strict=True):
            row[:length] = self._tokens[start : start + length]
        attention_mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
        labels = self._labels[chosen].long()
        tensors = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        tensors |= {name: tensor[chosen] for name, tensor in self._more.items()}
        weight = len(chosen) if self._is_set else (labels >= 0).sum()
        return Batch(tensors, float(weight), int(lengths.sum()))

    def _width(self, longest: int) -> int:
        """Return the length of a batch; CANINE leaves out the last molecule of a text, so that is to be padding."""
        return longest if not self.molecule else (-(-longest // self.molecule) + 1) * self.molecule


def prepare(
    config: Any, tokenizer: PreTrainedTokenizerBase | None, root: Path, dist: DistEnv
) -> tuple[Corpus, Meaning, list[str]]:
    """Read and tokenize the labelled texts, or load them from the cache folder `root`; a collective.

    `config` has the settings of the task `classify`. Return the texts, what the model's inputs and outputs mean, and
    lines to print. Without a tokenizer one of `config.vocab` tokens is trained on the texts. Without `val_data` a share
    of `config.held_out` is taken out of the rows by a permutation of `config.seed`.
    """
    key = _key(config, tokenizer) if dist.rank == 0 else {}
    folder, tensors = prepared.prepare(root, key, lambda folder: _make(config, tokenizer, folder), dist)
    if tokenizer is None:
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.add_special_tokens({"pad_token": tokenizer.eos_token or "<|pad|>"})
    tokenizer.padding_side = "right"  # as in training: it matters where positions are absolute
    notes = json.loads((folder / "notes.json").read_text(encoding="utf-8"))
    means = meaning.of_json(notes)

    def samples(part: str) -> Labelled:
        prefix = f"{part}."
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        tokens, offsets, answers = (own.pop(name) for name in ("tokens", "offsets", "labels"))
        is_set = means.groups[0].kind == groups.SET
        return Labelled(tokens, offsets, answers, tokenizer.pad_token_id, own, is_set=is_set)

    corpus = Corpus(tokenizer, samples("train"), samples("held_out"), folder.name)
    return corpus, means, notes["said"]


def _key(config: Any, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    """Return what the prepared data depends on."""
    key: dict[str, Any] = {"name": "classify", "data": marks(*_data(config)), "targets": _target_cols(config)}
    key |= {name: getattr(config, name) for name in CACHE_KEYS}
    for name in CACHE_KEYS_IF_SET:
        if getattr(config, name) != getattr(type(config), name):
            key[name] = getattr(config, name)
    key["split"] = None if config.val_data else [config.held_out, config.seed]
    key["tokenizer"] = digest(tokenizer)
    return key


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

    There may also be `features`, `numbers` and `codes`. Saves a newly trained tokenizer in `folder`, and notes.json:
    the meaning of inputs and outputs, and lines to print.
    """
    target_cols = _target_cols(config)
    sources, others = _data(config)
    bad = config.on_bad_row
    table = targets.read_examples(sources, targets.formatter_of(config), target_cols, on_bad_row=bad)
    train, skipped, doubts, formatter = table
    if others:
        held_out, more, _, _ = targets.read_examples(others, formatter, target_cols, on_bad_row=bad)
        skipped += more
    else:
        train, held_out = _split(train, config)
    if tokenizer is None:
        tokenizer = train_bpe((example.text for example in train), config.vocab)
        tokenizer.save_pretrained(folder)
    means = _meaning_of(train, target_cols, formatter)
    tensors: dict[str, torch.Tensor] = {}
    cut = 0
    unseen: list[str] = []
    for part, examples in (("train", train), ("held_out", held_out)):
        ids, longer = encode(tokenizer, examples, config.seq_len)
        lengths = torch.tensor([0, *map(len, ids)])
        tensors[f"{part}.tokens"] = torch.tensor([i for text in ids for i in text], dtype=torch.int32)
        tensors[f"{part}.offsets"] = lengths.cumsum(0)
        own, unseen = _answers(examples, means)
        tensors |= {f"{part}.{name}": tensor for name, tensor in own.items()}
        cut += longer
    line = f"{plural(len(train), 'text')} to train on, {len(held_out):,} held out"
    line += f"; {cut:,} truncated to {config.seq_len} tokens" if cut else ""
    line += f"; {plural(skipped, 'bad row')} skipped" if skipped else ""
    notes = means.json() | {"said": [line, *doubts, *_warning(unseen)]}
    (folder / "notes.json").write_text(json.dumps(notes), encoding="utf-8")
    return tensors


def _meaning_of(train: Sequence[Example], target_cols: Sequence[str], formatter: Formatter) -> Meaning:
    """Return what the training rows say of the inputs and outputs."""
    numbers = zip(*(example.numbers for example in train), strict=True)
    scales = tuple(scale_of(*column) for column in zip(formatter.number_cols, numbers, strict=True))
    alphabet = codes.alphabet_of([_codes(example) for example in train]) if formatter.objective == "mixed" else None
    return Meaning(groups.find_groups(train, target_cols, formatter), scales, alphabet)


def _codes(example: Example) -> list[str]:
    return [code for code in example.answers if code]


def _answers(examples: Sequence[Example], means: Meaning) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return what the rows have beside their texts as tensors, and the names of classes without training rows."""
    table, unseen = groups.labels(examples, means.groups)
    tensors = {"labels": torch.tensor(table, dtype=torch.int32)}
    if means.scales:
        tensors["features"] = torch.tensor([features(means.scales, example.numbers) for example in examples])
    if any(group.kind == groups.NUMBER for group in means.groups):
        tensors["numbers"] = torch.tensor(groups.scaled_numbers(examples, means.groups))
    if means.alphabet is not None:
        rows = [codes.encode(_codes(example), means.alphabet) for example in examples]
        tensors["codes"] = torch.tensor(rows, dtype=torch.int32)
    return tensors, unseen


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


def encode(tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], most: int) -> tuple[list[list[int]], int]:
    """Return the token ids of the texts, as the tokenizer gives them, and how many were cut at `most` tokens."""
    ids = tokenizer([example.text for example in examples], verbose=False)["input_ids"]
    longer = [number for number, text in enumerate(ids) if len(text) > most]
    for number in longer:
        ids[number] = tokenizer(examples[number].text, truncation=True, max_length=most)["input_ids"]
    keep_whole(tokenizer)
    for number, (example, text) in enumerate(zip(examples, ids, strict=True)):
        if not text and example.text:
            raise WorkerError(f"{example.where}: the tokenizer produces no tokens for {example.text!r:.60}")
        if not text:  # a row of numbers only
            ids[number] = [tokenizer.eos_token_id or 0]
    return ids, len(longer)
