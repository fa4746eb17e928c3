"""The default job: causal language modelling over text, by default text that every Python carries.

No download, no data set to prepare: it shows in a minute that a cluster trains, with a loss that really falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..distenv import DistEnv, RunEnv
from ..errors import WorkerError
from ..training import settings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Config(settings.Training):
    """What can be set for `lm`, with `KEY=VALUE`, beside the keys of every task. Lengths are tokens.

    `data` is files or globs (txt, jsonl, csv, parquet; "pydoc": the topics of Python's own help); the last
    `held_out` of it, or `val_data`, is for evaluation. `model` is a preset, a folder, or a hub name; a preset gets a
    tokenizer of `vocab` tokens trained on the data.
    """

    task: ClassVar[str] = "lm"

    data: str | tuple[str, ...] = "pydoc"
    val_data: str | tuple[str, ...] = ""
    held_out: float = 0.1
    text_column: str = "text"
    model: str = "tiny"
    vocab: int = 1024
    seq_len: int = 64

    steps: int = 150
    lr: float = 3e-3


def check(config: Config, world_size: int) -> None:
    """Refuse what cannot be trained, in one line with what would be possible."""
    settings.check(config, world_size)
    if not 0 < config.held_out < 1:
        raise WorkerError(f"held_out must be between 0 and 1, got {config.held_out}", status=2)


def run(config: Config, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    """Train on all ranks of the open process group (or on one process alone)."""
    from ..data import texts
    from ..finish import cache_folder, train_and_leave
    from ..models import generate, load
    from ..work import Work, next_token

    source = load.resolve(config.model)
    corpus = texts.prepare(config, load.tokenizer(source), cache_folder(run), dist)
    tokenizer = corpus.tokenizer
    model = load.build(
        source,
        head="causal",
        vocab_size=len(tokenizer),
        seq_len=config.seq_len,
        pad_id=tokenizer.pad_token_id,
        seed=config.seed,
    )
    work = Work(
        model=model,
        train=corpus.train,
        held_out=corpus.held_out,
        loss=next_token,
        sample=lambda prompt: generate.sample(model, tokenizer, prompt, tokens=config.sample_tokens, device=device),
        tokenizer=tokenizer,
        fingerprint=corpus.fingerprint,
    )
    train_and_leave(work, config, dist, run, device)
