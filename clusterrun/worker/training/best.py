"""The evaluation with the lowest held-out loss: the finished model has its weights, unless keep=last."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ...base.decode import as_int, as_number
from ...base.errors import WorkerError
from ...base.units import plural
from . import checkpoint, ddp


class BestModel:
    """The best evaluation so far, the same on every rank, and on rank 0 a copy of its weights in host memory.

    Under FSDP every rank has a copy of its parts of them.

    `step` is None before the first one. `scores` are the task's own. `waited` counts the evaluations since, none of
    which was better.
    """

    def __init__(self, config: Any, rank: int) -> None:
        self.step: int | None = None
        self.val_loss = math.inf
        self.scores: dict[str, Any] = {}
        self.waited = 0
        self._patience: int = config.early_stopping
        self._keeps = config.keep == "best" and not config.measure
        self._holds = self._keeps and (rank == 0 or config.parallel == "fsdp")
        self._weights: dict[str, torch.Tensor] = {}

    @property
    def ends_training(self) -> bool:
        """Whether there were as many evaluations without a better one as early_stopping allows."""
        return 0 < self._patience <= self.waited

    def note(self, step: int, measures: Mapping[str, float], model: torch.nn.Module, is_last: bool) -> None:
        """Compare an evaluation with the best one, and copy the weights of a better one. NaN is never better."""
        self.waited += 1
        if measures["val_loss"] < self.val_loss:
            self.step, self.val_loss, self.waited = step, measures["val_loss"], 0
            self.scores = {name: value for name, value in measures.items() if name != "val_loss"}
            self._weights = copy_weights(model) if self._holds and not is_last else {}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, as JSON; its weights are those of `unsaved`."""
        val_loss = None if self.step is None else self.val_loss
        found = {"step": self.step, "val_loss": val_loss, "scores": self.scores}
        return {**found, "waited": self.waited, "kept": self._keeps}

    def unsaved(self, step: int) -> dict[str, torch.Tensor]:
        """Return the weights that the checkpoint of a step must have beside the model's own: none if these are best."""
        return {} if self.step == step else self._weights

    def restore(
        self, state: Mapping[str, Any], model: torch.nn.Module, step: int, load: Callable[[], dict[str, torch.Tensor]]
    ) -> None:
        """Continue from a checkpoint, already loaded into the model; `load` gives its best weights, if others are best.

        A run with keep=last saved no best weights. After it, the search for the best evaluation starts again.
        """
        best, val_loss = as_int(state.get("step")), as_number(state.get("val_loss"))
        if best is None or val_loss is None or (self._keeps and not state.get("kept")):
            return
        self.step, self.val_loss, self.waited = best, val_loss, as_int(state.get("waited")) or 0
        scores = state.get("scores")
        self.scores = dict(scores) if isinstance(scores, dict) else {}
        if self._holds:
            self._weights = copy_weights(model) if best == step else load()

    def put_back(self, model: torch.nn.Module, step: int) -> None:
        """Give the model of the last step the best weights, where they are kept: those that are to be exported."""
        weights = model.state_dict() if self.step != step else {}
        for name, best in self._weights.items() if weights else ():  # without frozen weights and names of tied ones
            ddp.own_part(weights[name]).copy_(best)

    def kept(self, step: int) -> dict[str, Any]:
        """Return the step, held-out loss and scores of the finished model; the step alone if no evaluation counts."""
        if not self._keeps or self.step is None:
            return {"model_step": step}
        scores = {"model_scores": self.scores} if self.scores else {}
        return {"model_step": self.step, "model_val_loss": self.val_loss, **scores}

    def reason(self) -> str:
        """Return why the training ended before its last step."""
        return f"{plural(self.waited, 'evaluation')} without a lower held-out loss (early_stopping={self._patience})"


def copy_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copy what training changes to host memory: all but frozen weights, and tied ones once."""
    first: dict[Any, str] = {}
    copies = {}
    for name, weight in checkpoint.trained_state(model).items():
        tensor = ddp.own_part(weight.detach())
        if first.setdefault(checkpoint.memory_key(tensor) or id(weight), name) == name:
            copies[name] = tensor.to("cpu", copy=True)
    return copies


def load_best(path: Path) -> dict[str, torch.Tensor]:
    """Return the best weights that a checkpoint has beside its own; raises WorkerError."""
    from safetensors.torch import load_file

    try:
        return load_file(path / checkpoint.BEST)
    except Exception as error:  # the errors of safetensors have no common class
        raise WorkerError(f"checkpoint {path} cannot be read: {checkpoint.BEST}: {error}") from None
