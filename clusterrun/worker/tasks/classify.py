"""Fine-tuning a classifier of texts on tables: one target column or many, each with its own classes."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...base.errors import WorkerError
from ...base.settings import Classify as Config
from ..data import targets
from ..rank.distenv import DistEnv, RunEnv
from ..training import settings

if TYPE_CHECKING:
    import torch

    from ..training.work import Tensors


def check(config: Config, world_size: int) -> None:
    """Raise WorkerError (status 2) for settings that cannot work."""
    settings.check(config, world_size)
    formatter = targets.find_formatter(config.formatter, config.text_cols)
    if formatter.columns != config.text_cols and config.text_cols != Config.text_cols:
        raise WorkerError(f"formatter={config.formatter} already names the text columns: omit text_cols", status=2)
    if not all(formatter.columns):
        raise WorkerError("text_cols contains an empty column name", status=2)
    for number, target in enumerate(config.target_cols):
        if target in config.target_cols[:number]:
            raise WorkerError(f"target_cols names {target!r} twice", status=2)
        if target in formatter.columns:
            raise WorkerError(f"target {target!r} is also a text column, so the model would see the label", status=2)


def run(config: Config, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    """Train on all ranks of the open process group (or on one process alone)."""
    from ..data import labelled
    from ..models import load
    from ..training.work import Work
    from . import scores
    from .finish import cache_folder, train_and_save

    source = load.resolve(config.model)
    corpus, groups, notes = labelled.prepare(config, load.tokenizer(source), cache_folder(run), dist)
    for line in notes if dist.rank == 0 else ():
        print(f"clusterrun: {line}", flush=True)
    names = [f"{group.name}={name}" for group in groups for name in group.classes]
    model = load.build(
        source,
        head="classify",
        vocab_size=len(corpus.tokenizer),
        num_labels=len(names),
        id2label=dict(enumerate(names)),
        seq_len=config.seq_len,
        pad_id=corpus.tokenizer.pad_token_id,
        seed=config.seed,
    )
    work = Work(
        model=model,
        train=corpus.train,
        held_out=corpus.held_out,
        loss=functools.partial(sum_of_losses, groups=groups),
        measure=lambda model, tensors: scores.measure(groups, logits(model, tensors), tensors["labels"]),
        summarize=lambda sums: scores.summarize(groups, sums),
        tokenizer=corpus.tokenizer,
        fingerprint=corpus.fingerprint,
        files={"labels.json": described(config, groups)},
    )
    train_and_save(work, config, dist, run, device)


def logits(model: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
    """Return the logits (texts, outputs) in float32; all tensors but the labels are the model's arguments."""
    outputs: torch.Tensor = model(**{name: tensor for name, tensor in tensors.items() if name != "labels"}).logits
    return outputs.float()


def sum_of_losses(model: torch.nn.Module, tensors: Tensors, groups: Sequence[targets.Group]) -> torch.Tensor:
    """Return the summed cross-entropy (nats) of all labelled (text, group) pairs."""
    from torch.nn.functional import cross_entropy

    from ..training.work import IGNORED

    outputs = logits(model, tensors)
    labels = tensors["labels"].masked_fill(tensors["labels"] < 0, IGNORED)
    losses = [
        cross_entropy(outputs[:, group.start : group.end], labels[:, i], ignore_index=IGNORED, reduction="sum")
        for i, group in enumerate(groups)
    ]
    return sum(losses[1:], losses[0])


def described(config: Config, groups: Sequence[targets.Group]) -> str:
    """Return the text of labels.json: how a row becomes a text, and the meaning of the model's outputs."""
    columns = targets.find_formatter(config.formatter, config.text_cols).columns
    found = {"formatter": config.formatter, "text_cols": columns, "seq_len": config.seq_len}
    return json.dumps(found | {"targets": targets.describe(groups)}, indent=2, ensure_ascii=False) + "\n"
