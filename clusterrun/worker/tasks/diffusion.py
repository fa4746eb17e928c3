"""LLaDA's masked diffusion over text: tokens are masked at random, and the model learns to restore them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...base.errors import WorkerError
from ..rank.distenv import DistEnv, RunEnv
from ..training import settings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Config(settings.Training):
    """The settings of `diffusion`, besides those of every task. Lengths are in tokens."""

    task: ClassVar[str] = "diffusion"
    default_global_batch: ClassVar[int] = 8

    data: str | tuple[str, ...] = "pydoc"  # files or globs (txt, jsonl, csv, parquet); pydoc: Python's help topics
    val_data: str | tuple[str, ...] = ""  # data to evaluate on
    held_out: float = 0.1  # share of the data, at its end, to evaluate on without val_data
    text_column: str = "text"  # column of jsonl, csv and parquet files
    model: str = "tiny"  # a preset, a folder or a hub name; Llama or GPT-2
    vocab: int = 320  # for a preset; with more tokens it takes longer to learn more than their frequencies
    seq_len: int = 64  # tokens per sample
    eps: float = 1e-3  # a sequence's tokens are masked with a probability drawn from eps to 1
    sample_steps: int = 20  # rounds in which a sample is filled in

    steps: int = 1000
    lr: float = 3e-3
    eval_every: int = 200
    log_every: int = 50


def check(config: Config, world_size: int) -> None:
    """Raise WorkerError (status 2) for settings that cannot work."""
    settings.check(config, world_size)
    if not 0 < config.eps < 1:
        raise WorkerError(f"eps must be greater than 0 and less than 1, got {config.eps}", status=2)
    if config.sample_steps < 1:
        raise WorkerError(f"sample_steps must be at least 1, got {config.sample_steps}", status=2)


def run(config: Config, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    """Train on all ranks of the open process group (or on one process alone)."""
    from ..data import texts
    from ..models import load, masked, unmask
    from ..training.work import Work
    from .finish import cache_folder, train_and_save

    source = load.resolve(config.model)
    corpus = texts.prepare(config, load.tokenizer(source), cache_folder(run), dist)
    tokenizer = corpus.tokenizer
    mask_id = masked.add_mask_token(tokenizer)
    model = load.build(
        source,
        head="causal",
        vocab_size=len(tokenizer),
        seq_len=config.seq_len,
        pad_id=tokenizer.pad_token_id,
        seed=config.seed,
    )
    masked.make_bidirectional(model)

    def sample(prompt: str) -> str:
        tokens, rounds = config.sample_tokens, config.sample_steps
        return unmask.sample(model, tokenizer, prompt, tokens=tokens, rounds=rounds, device=device)

    work = Work(
        model=model,
        train=corpus.train,
        held_out=corpus.held_out,
        loss=functools.partial(masked.masked_loss, mask_id=mask_id, eps=config.eps),
        sample=sample,
        tokenizer=tokenizer,
        fingerprint=corpus.fingerprint,
    )
    train_and_save(work, config, dist, run, device)
