"""Fine-tuning a classifier of texts on tables: one target column or many, each with its own classes."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..data import targets
from ..distenv import DistEnv, RunEnv
from ..errors import WorkerError
from ..training import settings

if TYPE_CHECKING:
    import torch

    from ..work import Tensors


@dataclass(frozen=True)
class Config(settings.Training):
    """What can be set for `classify`, with `KEY=VALUE`, beside the keys of every task. Lengths are tokens.

    `dataset` is a file or glob of rows (csv, tsv, jsonl, parquet; "pydoc", the default: docstrings of Python's standard
    library), of which a `held_out` share, drawn by `seed`, is for evaluation. In its place `train_data` may name
    several, and `val_data` what is held out. `target_cols` are the columns to learn; an empty cell is left out.
    `formatter` tells how a row is read: "plain" joins `text_cols`, "hisco" reads HISCO codes, and columns in braces,
    such as "{title}: {body}", take the place of `text_cols`. `model` is a preset, a folder, gguf:FILE or a hub name; a
    preset gets a tokenizer of `vocab` tokens trained on the data. A longer text is cut at `seq_len`.
    """

    task: ClassVar[str] = "classify"

    dataset: str | tuple[str, ...] = ""
    train_data: str | tuple[str, ...] = ""
    val_data: str | tuple[str, ...] = ""
    held_out: float = 0.1
    target_cols: tuple[str, ...] = ()
    text_cols: tuple[str, ...] = ("text",)
    formatter: str = "plain"
    model: str = "tiny"
    vocab: int = 1024
    seq_len: int = 64

    steps: int = 150
    lr: float = 1e-3


def check(config: Config, world_size: int) -> None:
    """Refuse what cannot be trained, in one line with what would be possible."""
    settings.check(config, world_size)
    if not 0 < config.held_out < 1:
        raise WorkerError(f"held_out must be between 0 and 1, got {config.held_out}", status=2)
    if config.dataset and (config.train_data or config.val_data):
        other = "train_data" if config.train_data else "val_data"
        raise WorkerError(
            f"dataset and {other} are both set: dataset is split into training and held-out rows, so set either"
            " dataset, or train_data and val_data",
            status=2,
        )
    if config.val_data and not config.train_data:
        raise WorkerError("val_data is set, but not train_data: set both, or dataset alone", status=2)
    formatter = targets.find_formatter(config.formatter, config.text_cols)
    if formatter.columns != config.text_cols and config.text_cols != Config.text_cols:
        raise WorkerError(
            f"formatter={config.formatter} names the text's columns itself: leave text_cols out", status=2
        )
    if not all(formatter.columns):
        raise WorkerError("text_cols must name the columns of the text", status=2)
    for number, target in enumerate(config.target_cols):
        if target in config.target_cols[:number]:
            raise WorkerError(f"target_cols names {target!r} twice", status=2)
        if target in formatter.columns:
            raise WorkerError(f"target {target!r} is in the text too: the model would read the answer", status=2)


def run(config: Config, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    """Train on all ranks of the open process group (or on one process alone)."""
    from .. import scores
    from ..data import labelled
    from ..finish import cache_folder, train_and_leave
    from ..models import load
    from ..work import Work

    source = load.resolve(config.model)
    data = labelled.prepare(config, load.tokenizer(source), cache_folder(run), dist)
    for line in data.said if dist.rank == 0 else ():
        print(f"clusterrun: {line}", flush=True)
    names = [f"{group.name}={name}" for group in data.groups for name in group.classes]
    model = load.build(
        source,
        head="classify",
        vocab_size=len(data.tokenizer),
        num_labels=len(names),
        id2label=dict(enumerate(names)),
        seq_len=config.seq_len,
        pad_id=data.tokenizer.pad_token_id,
        seed=config.seed,
    )
    work = Work(
        model=model,
        train=data.train,
        held_out=data.held_out,
        loss=functools.partial(sum_of_losses, groups=data.groups),
        measure=lambda model, tensors: scores.measure(data.groups, logits(model, tensors), tensors["labels"]),
        summarize=lambda sums: scores.summarize(data.groups, sums),
        tokenizer=data.tokenizer,
        fingerprint=data.fingerprint,
        files={"labels.json": described(config, data.groups)},
    )
    train_and_leave(work, config, dist, run, device)


def logits(model: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
    """(texts, outputs) in float32; all tensors but the labels are the model's own arguments."""
    return model(**{name: tensor for name, tensor in tensors.items() if name != "labels"}).logits.float()


def sum_of_losses(model: torch.nn.Module, tensors: Tensors, groups: Sequence[targets.Group]) -> torch.Tensor:
    """Sum of the cross-entropies (nats) of all labelled (text, group) pairs."""
    from torch.nn.functional import cross_entropy

    from ..work import IGNORED

    outputs = logits(model, tensors)
    labels = tensors["labels"].masked_fill(tensors["labels"] < 0, IGNORED)
    losses = [
        cross_entropy(outputs[:, group.start : group.end], labels[:, i], ignore_index=IGNORED, reduction="sum")
        for i, group in enumerate(groups)
    ]
    return sum(losses[1:], losses[0])


def described(config: Config, groups: Sequence[targets.Group]) -> str:
    """Return the text of labels.json: how a row becomes a text, and what the model's outputs stand for."""
    columns = targets.find_formatter(config.formatter, config.text_cols).columns
    found = {"formatter": config.formatter, "text_cols": columns, "seq_len": config.seq_len}
    return json.dumps(found | {"targets": targets.describe(groups)}, indent=2, ensure_ascii=False) + "\n"
