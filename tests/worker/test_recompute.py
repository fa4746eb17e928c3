"""Activation checkpointing: layers computed again in the backward pass change no bit, and keep less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

from clusterrun.worker.rank import distenv
from clusterrun.worker.training import layers, stopping
from clusterrun.worker.training.ddp import own_part
from clusterrun.worker.training.loop import train
from clusterrun.worker.training.work import Work
from tests.worker.small_models import make_model
from tests.worker.small_training import Config, Counting, loss, run_env

pytestmark = pytest.mark.usefixtures("signals_as_before")


def trained(folder: Path, **settings: Any) -> list[torch.Tensor]:
    """The weights after some steps of a model of two layers with dropout."""
    stopping._received.clear()  # a run is a process of its own
    model = make_model(num_hidden_layers=2, attention_dropout=0.3)
    work = Work(model, Counting(64), Counting(10), loss, fingerprint="counting")
    train(work, Config(steps=6, **settings), distenv.resolve({}), run_env(folder), torch.device("cpu"))
    weights = [own_part(p.detach()).clone() for p in model.parameters()]
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()
    return weights


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_recomputed_layers_train_to_the_same_bits(tmp_path: Path, parallel: str) -> None:
    plain = trained(tmp_path / "plain", parallel=parallel)
    again = trained(tmp_path / "again", parallel=parallel, recompute=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_a_layer_keeps_its_input_alone() -> None:
    def kept(recomputed: bool) -> int:
        model = make_model(num_hidden_layers=2).train()
        if recomputed:
            layers.recompute(model)
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.numel()), t)[1], lambda t: t):
            model(input_ids=torch.zeros(4, 32, dtype=torch.long))
        return sum(sizes)

    assert kept(recomputed=True) < kept(recomputed=False) / 2
