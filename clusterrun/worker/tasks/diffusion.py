"""LLaDA's masked diffusion over text: tokens are masked at random, and the model learns to restore them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ...base.errors import WorkerError
from ...base.settings import Diffusion as Config
from ..rank.distenv import DistEnv, RunEnv
from ..training import settings

if TYPE_CHECKING:
    import torch


def check(config: Config, world_size: int) -> None:
    """Raise WorkerError (status 2) for settings that cannot work."""
    settings.check(config, world_size)
    if not 0 < config.eps < 1:
        raise WorkerError(f"eps must be greater than 0 and less than 1, got {config.eps}", status=2)


def run(config: Config, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    """Train on all ranks of the open process group (or on one process alone)."""
    from ..data import texts
    from ..models import attention, load, masked, unmask
    from ..models.token_loss import TokenLoss
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

    attention.install(model, device, config.precision, packed=False)
    loss = TokenLoss(model, functools.partial(masked.label, mask_id=mask_id, eps=config.eps))
    work = Work(
        model=model,
        train=corpus.train,
        held_out=corpus.held_out,
        loss=loss,
        prepare=loss.prepare,
        one_shape=True,
        sample=sample,
        tokenizer=tokenizer,
        fingerprint=corpus.fingerprint,
    )
    train_and_save(work, config, dist, run, device)
