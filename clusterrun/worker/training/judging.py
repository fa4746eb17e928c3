"""Judge each step's gradient before anything that it led to is saved, evaluated or exported."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..distenv import DistEnv
from ..errors import WorkerError
from .consensus import Agreement

MOST_SKIPPED = 20  # steps in a row without a finite gradient, even where on_nan=skip


@dataclass(frozen=True)
class Taken:
    """One step, with the norm, loss and samples that belong to it.

    `norm` is the gradient's, the same on every rank. `loss` is this rank's part of the step's mean loss.
    """

    step: int
    norm: torch.Tensor
    loss: torch.Tensor
    samples: list[int]
    lr: float


class Judge:
    """Ends the run, or skips the step, where a gradient is not finite. All ranks come to the same answer.

    With `late`, a step is judged one step later, so that a GPU's queue is not waited for; with on_nan=skip it never is.
    """

    def __init__(self, late: bool, on_nan: str, agreement: Agreement, dist: DistEnv) -> None:
        self._stops = on_nan == "stop"
        self._late = late and self._stops
        self._agreement = agreement
        self._dist = dist
        self._waiting: Taken | None = None
        self._skipped = 0

    def passes(self, taken: Taken, now: bool) -> bool:
        """Tell whether the optimizer may take this step; with `now` it is judged in any case. Raises WorkerError."""
        self.settle()
        if self._late and not now:
            self._waiting = taken
            return True
        if math.isfinite(taken.norm.item()):
            self._skipped = 0
            return True
        self._skipped += 1
        if self._stops or self._skipped > MOST_SKIPPED:
            raise self.error(taken)
        return False

    def settle(self) -> None:
        """Judge the step that still waits, if one does; raises WorkerError."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not math.isfinite(waiting.norm.item()):
            raise self.error(waiting)

    def weights(self, model: torch.nn.Module, step: int, lr: float) -> None:
        """Raise WorkerError if a weight is not finite: a finite gradient with too high an lr can do that."""
        if not torch.stack([p.detach().isfinite().all() for p in model.parameters()]).all().item():
            raise WorkerError(f"the weights are not finite after step {step}: try a lower lr than {lr:g}")

    def error(self, taken: Taken, since: int | None = None) -> WorkerError:
        """Return the error for a gradient that is not finite: the step, whose batch it was, and what to do.

        `since` is the first step of a mean loss that is not finite. Every rank must call this.
        """
        bad = [0.0] * self._dist.world_size
        bad[self._dist.rank] = float(not math.isfinite(taken.loss.item()))
        culprits = [rank for rank, flag in enumerate(self._agreement.sum(bad)) if flag]
        what, where = "the gradient", f"at step {taken.step}"
        if culprits:
            what = f"the loss of rank {', '.join(map(str, culprits))}"
        elif since is not None:
            what, where = "the loss", f"in a step from {since} to {taken.step}"
        shown = ""
        if self._dist.rank in culprits:
            more = " …" if len(taken.samples) > 16 else ""
            shown = f" (this rank's samples: {', '.join(map(str, taken.samples[:16]))}{more})"
        return WorkerError(
            f"{what} is not finite {where}{shown}: try a lower lr than {taken.lr:g} or a longer"
            f" warmup{', or set on_nan=skip' if self._stops else ''}"
        )
