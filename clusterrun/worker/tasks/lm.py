"""Causal language modelling over text, by default over the help texts that come with Python.

It needs no download and no data set: in a minute it shows that a cluster can train, with a falling loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.settings import Lm as Config
from ..rank.distenv import DistEnv, RunEnv
from ..training import settings

if TYPE_CHECKING:
    import torch

check = settings.check


def run(config: Config, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    """Train on all ranks of the open process group (or on one process alone)."""
    from ..data import texts
    from ..models import attention, generate, load
    from ..models.token_loss import TokenLoss
    from ..training.work import Work
    from .finish import cache_folder, train_and_save

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
    attention.install(model, device, config.precision, packed=False)
    loss = TokenLoss(model)
    work = Work(
        model=model,
        train=corpus.train,
        held_out=corpus.held_out,
        loss=loss,
        prepare=loss.prepare,
        one_shape=True,
        sample=lambda prompt: generate.sample(model, tokenizer, prompt, tokens=config.sample_tokens, device=device),
        tokenizer=tokenizer,
        fingerprint=corpus.fingerprint,
    )
    train_and_save(work, config, dist, run, device)
