"""A model that trains in milliseconds, and its samples: for the tests of the loop."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from clusterrun.worker.rank import distenv
from clusterrun.worker.rank.distenv import RunEnv
from clusterrun.worker.training import stopping
from clusterrun.worker.training.loop import train
from clusterrun.worker.training.settings import Training
from clusterrun.worker.training.work import Batch, Tensors, Work, next_token


@dataclasses.dataclass(frozen=True)
class Config(Training):
    seq_len: int = 8
    steps: int = 12
    eval_every: int = 6


class Net(torch.nn.Module):
    """The smallest causal model: an embedding, dropout, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(16, 8)
        self.drop = torch.nn.Dropout(0.2)
        self.head = torch.nn.Linear(8, 16)

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> Any:
        return type("Out", (), {"logits": self.head(self.drop(self.embed(input_ids)))})


class Counting:
    """Rows that count up by one: easily learned. Remembers which samples were asked for."""

    def __init__(self, count: int, poison: frozenset[int] = frozenset()) -> None:
        self.count = count
        self.asked: list[int] = []
        self.poison = poison

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: Sequence[int]) -> Batch:
        self.asked += indices
        rows = torch.stack([(torch.arange(9) + i) % 16 for i in indices])
        scale = torch.tensor([math.nan if i in self.poison else 1.0 for i in indices])
        return Batch({"input_ids": rows[:, :-1], "labels": rows[:, 1:], "scale": scale}, len(indices) * 8.0, 8)


def loss(model: torch.nn.Module, tensors: Tensors) -> torch.Tensor:
    """The loss times the samples' scale; a negative scale leaves the loss as it is and makes the gradient NaN."""
    scale = tensors["scale"].mean()
    found = next_token(model, {k: v for k, v in tensors.items() if k != "scale"})
    if scale < 0:
        return found + (next(model.parameters()) * 0).sum().sqrt()
    return found * scale


def run_env(folder: Path, **more: Any) -> RunEnv:
    (folder / "attempt").mkdir(parents=True, exist_ok=True)
    return RunEnv(run_id="r1", run_dir=folder, attempt_dir=folder / "attempt", **more)


def go(
    folder: Path, samples: Counting | None = None, env: RunEnv | None = None, late: bool | None = None, **settings: Any
) -> tuple[bool, Work]:
    stopping._received.clear()  # a run is a process of its own
    work = Work(Net(), samples or Counting(64), Counting(10), loss, fingerprint="counting")
    done = train(work, Config(**settings), distenv.resolve({}), env or run_env(folder), torch.device("cpu"), late)
    return done, work


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def weights(work: Work) -> list[torch.Tensor]:
    return [p.detach().clone() for p in work.model.parameters()]
