"""A file as PyTorch's scripts save it after an epoch: `export=checkpoint_epoch_N.pt` writes it, `resume=` continues it.

It is a dict of `epoch`, `step`, `model_state_dict` and `optimizer_state_dict` (and `scaler_state_dict` in fp16), which
`model.load_state_dict` and the state of `AdamW(model.parameters())` take as they are. `clusterrun` has the run's id and
the settings that a run must share to continue from it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...base.decode import as_int
from ...base.errors import WorkerError
from ...run_folder import atomic, attempt_number
from ..node.log import say
from ..rank.distenv import DistEnv, RunEnv
from ..rank.failures import first_line
from . import checkpoint

OWN = "clusterrun"
EPOCH = re.compile(r"(?<![A-Za-z0-9])N(?![A-Za-z0-9])")  # in the file's name
KEPT_OF_ADAM = ("step", "exp_avg", "exp_avg_sq")


def own_state(content: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what a file of clusterrun says beside what others have; empty for another file."""
    own = content.get(OWN)
    if not isinstance(own, dict) or not isinstance(own.get("settings"), dict):
        return {}
    return {"step": as_int(own.get("step")), "settings": own["settings"]}


class EpochFiles:
    """Writes the files that `export` names, on rank 0: one after each epoch N, or without an N one at the end."""

    def __init__(self, config: Any, dist: DistEnv, run: RunEnv, steps_per_epoch: int, steps: int) -> None:
        """Raise WorkerError (status 2) for files of another run, and if no epoch ends in these steps."""
        self._path = Path(config.export).expanduser().absolute()
        self._is_wanted = bool(config.export) and not config.measure
        self._per_epoch = steps_per_epoch if EPOCH.search(self._path.name) else 0
        self._writes, self._steps_per_epoch, self._run_id = dist.rank == 0, steps_per_epoch, run.run_id
        if self._is_wanted and self._per_epoch > steps:
            raise WorkerError(
                f"export={config.export} is written after each epoch of {steps_per_epoch:,} steps, but the run has"
                f" {steps:,}: set steps=0 epochs=1, or a name without N for one file at the end",
                status=2,
            )
        if self._is_wanted and self._writes:
            self._refuse_others()

    def are_due(self, step: int, is_last: bool) -> bool:
        """Return whether a file is to be written after a step."""
        return self._is_wanted and (step % self._per_epoch == 0 if self._per_epoch else is_last)

    def write(
        self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: Any, settings: dict[str, Any]
    ) -> None:
        """Write the file of a step; a disk that takes no more does not end the training."""
        if not self._writes:
            return
        epoch = step // self._steps_per_epoch
        content = {
            "epoch": epoch,
            "step": step,
            "model_state_dict": _on_cpu(model.state_dict()),
            "optimizer_state_dict": in_one_group(optimizer, model),
            **({"scaler_state_dict": scaler.state_dict()} if scaler.is_enabled() else {}),
            OWN: {"run_id": self._run_id, "step": step, "settings": settings},
        }
        path = self._path.with_name(EPOCH.sub(str(epoch), self._path.name))
        try:
            with atomic.replacing(path, mode=None, check=attempt_number.check) as file:
                torch.save(content, file)
        except (OSError, RuntimeError) as error:  # torch hides a full disk behind a RuntimeError
            say(f"cannot write {path}: {getattr(error, 'strerror', None) or first_line(error)}; training continues")

    def _refuse_others(self) -> None:
        """Make the folder; raise WorkerError if that fails, or it has such a file that this run has not written."""
        folder, name = self._path.parent, re.compile(EPOCH.sub("[0-9]+", re.escape(self._path.name)))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            there = sorted(filter(name.fullmatch, os.listdir(folder)))
        except OSError as error:
            raise WorkerError(f"export={self._path}: its folder cannot be used ({error.strerror})", status=2) from None
        for path in (folder / file for file in there):
            if not _is_of(path, self._run_id):
                raise WorkerError(f"export: {path} exists and does not belong to this run: give a new name", status=2)


def in_one_group(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, Any]:
    """Return an optimizer's state as one of all parameters of a model, in their order, has it."""
    numbers: dict[torch.Tensor, int] = {parameter: number for number, parameter in enumerate(model.parameters())}
    state = {numbers[parameter]: _on_cpu(of_one) for parameter, of_one in optimizer.state.items()}
    group = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    return {"state": dict(sorted(state.items())), "param_groups": [{**group, "params": list(numbers.values())}]}


def continue_adam(optimizer: torch.optim.Optimizer, model: torch.nn.Module, stored: Any) -> bool:
    """Give AdamW the state in a file, whose groups are all parameters in the model's order, or in AdamW's own.

    Learning rate, decay and betas stay those of this run. Return whether the state fits; else nothing is changed.
    """
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    try:
        states = [stored["state"].get(number) for group in stored["param_groups"] for number in group["params"]]
        for order in (list(model.parameters()), own):
            if len(order) == len(states) and all(map(_fits, states, order)):
                of_each = dict(zip(order, states, strict=True))
                _set_state(optimizer, [of_each.get(parameter) for parameter in own])
                return True
    except (LookupError, TypeError, AttributeError, ValueError):  # another optimizer's, or no optimizer's at all
        pass
    return False


def _fits(state: Any, parameter: torch.Tensor) -> bool:
    """Return whether this is AdamW's state of such a parameter; None for one without a gradient so far."""
    return state is None or all(state[name].shape == parameter.shape for name in ("exp_avg", "exp_avg_sq"))


def _set_state(optimizer: torch.optim.Optimizer, states: list[Any]) -> None:
    kept = {}
    for number, state in enumerate(states):
        if state is not None:
            kept[number] = {name: torch.as_tensor(state[name], dtype=torch.float32) for name in KEPT_OF_ADAM}
    optimizer.load_state_dict({"state": kept, "param_groups": optimizer.state_dict()["param_groups"]})


def _on_cpu(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return tensors in host memory, tied ones still tied."""
    keys = {name: checkpoint.memory_key(value) or name for name, value in values.items()}
    copies = {keys[name]: value.cpu() for name, value in values.items()}
    return {name: copies[key] for name, key in keys.items()}


def _is_of(path: Path, run_id: str) -> bool:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # mmap: the weights stay unread
        return bool(content[OWN]["run_id"] == run_id != "none")
    except Exception:  # whatever it is, it is not this run's
        return False
