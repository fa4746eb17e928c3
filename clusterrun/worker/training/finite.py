"""Check that each step's gradient is finite before its result is saved, evaluated or exported."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...base.errors import WorkerError
from ..rank.distenv import DistEnv
from .consensus import Consensus
from .ddp import own_part

MOST_SKIPPED = 20  # steps in a row without a finite gradient, even where on_nan=skip


@dataclass(frozen=True)
class StepResult:
    """The gradient norm, loss and samples of one step.

    `norm` is the same on every rank. `loss` is this rank's part of the step's mean loss.
    """

    step: int
    norm: torch.Tensor
    loss: torch.Tensor
    samples: list[int]
    lr: float


class FiniteCheck:
    """Ends the run, or skips the step, if the gradient is not finite. The decision is the same on all ranks.

    With `late`, a step is checked one step later, to avoid waiting for the GPU; with on_nan=skip, always at once.
    """

    def __init__(self, late: bool, on_nan: str, consensus: Consensus, dist: DistEnv) -> None:
        self._stops = on_nan == "stop"
        self._late = late and self._stops
        self._consensus = consensus
        self._dist = dist
        self._waiting: StepResult | None = None
        self._skipped = 0

    def passes(self, result: StepResult, now: bool) -> bool:
        """Return whether the optimizer may take this step. With `now` it is checked at once. Raises WorkerError."""
        self.settle()
        if self._late and not now:
            self._waiting = result
            return True
        if math.isfinite(result.norm.item()):
            self._skipped = 0
            return True
        self._skipped += 1
        if self._stops or self._skipped > MOST_SKIPPED:
            raise self.error(result)
        return False

    def settle(self) -> None:
        """Check the step that was put off, if any; raises WorkerError."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not math.isfinite(waiting.norm.item()):
            raise self.error(waiting)

    def weights(self, model: torch.nn.Module, step: int, lr: float) -> None:
        """Raise WorkerError if a weight is not finite: too high an lr can do that, with finite gradients.

        Every rank must call this.
        """
        mine = [own_part(p.detach()).isfinite().all() for p in model.parameters()]
        if self._consensus.sum([float(not torch.stack(mine).all().item())])[0]:
            text = f"the weights are not finite after step {step}: try an lr lower than {lr:g}"
            raise WorkerError(text, kind="nan-loss", what="a weight", where=f"after step {step}")

    def error(self, result: StepResult, since: int | None = None) -> WorkerError:
        """Return the error for a gradient that is not finite, with the step, the rank and what to set.

        `since` is the first step of a mean loss that is not finite. Every rank must call this.
        """
        bad = [0.0] * self._dist.world_size
        bad[self._dist.rank] = float(not math.isfinite(result.loss.item()))
        culprits = [rank for rank, flag in enumerate(self._consensus.sum(bad)) if flag]
        what, where = "the gradient", f"at step {result.step}"
        if culprits:
            what = f"the loss of rank{'s' * (len(culprits) > 1)} {', '.join(map(str, culprits))}"
        elif since is not None:
            what, where = "the loss", f"in at least one of steps {since} to {result.step}"
        shown = ""
        if self._dist.rank in culprits:
            more = " …" if len(result.samples) > 16 else ""
            shown = f" (samples of rank {self._dist.rank}: {', '.join(map(str, result.samples[:16]))}{more})"
        return WorkerError(
            f"{what} is not finite {where}{shown}: try an lr lower than {result.lr:g} or a longer"
            f" warmup{', or set on_nan=skip' if self._stops else ''}",
            kind="nan-loss",
            what=what,
            where=where,
        )
