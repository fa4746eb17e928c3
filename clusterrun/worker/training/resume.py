"""Resuming: find a checkpoint, load it, and check that it fits the model and the run."""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...base.decode import as_int
from ...base.errors import WorkerError, suggestion
from ...base.units import plural
from ..rank.failures import first_line
from . import atomic_files, checkpoint, epoch_file

FILES = (".pt", ".pth")
DATA_ORDER = ("seed", "global_batch_size", "micro_batch_size", "seq_len", "drop_last", "data")


@dataclass(frozen=True)
class Loaded:
    """A checkpoint in host memory; with weights only, `trainer` is None and `step` is 0.

    `epoch` is how many a .pt file has finished that has its optimizer too; its `step` is 0 if that is not known.
    `notes` are lines for the user, the same on every rank; rank 0 prints them.
    """

    step: int
    state: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    trainer: dict[str, Any] | None
    notes: tuple[str, ...] = ()
    epoch: int | None = None


def find(resume: str, own: Path) -> tuple[Path | None, list[str]]:
    """Return the checkpoint for the setting `resume` (None: start from the beginning), and lines for the user.

    `resume` is "auto" (the newest valid one in `own`), "no", a checkpoint, a folder of them, or a .pt file. Raises
    WorkerError, with status 2 for a path that does not exist or is none of these.
    """
    if resume == "no":
        return None, []
    path = own if resume == "auto" else Path(os.path.expanduser(resume.replace("\0", "")))  # a path cannot have a NUL
    try:
        if resume == "auto":
            return _find_own(own)
        if path.is_dir():
            return _find_in(path)
        if path.is_file() and path.suffix in FILES:
            return path, []
        if path.exists():
            raise WorkerError(f"resume={resume!r} is neither a checkpoint folder nor a .pt file", status=2)
        hint = _hint(resume, path)
    except OSError as error:
        raise WorkerError(f"resume: {str(path)!r} cannot be read ({error.strerror})") from None
    raise WorkerError(f"resume={resume!r}: no such checkpoint{hint}", status=2)


def load(path: Path) -> Loaded:
    """Load a checkpoint folder, or the weights of a .pt file; raises WorkerError."""
    return _load_file(path) if path.suffix in FILES and not path.is_dir() else _load_folder(path)


def load_state(path: Path) -> Loaded:
    """Load the state of a checkpoint folder, without tensors; raises WorkerError."""
    try:
        state = json.loads(atomic_files.read_small(path / checkpoint.STATE))
        return Loaded(int(state["step"]), state, {}, None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WorkerError(f"checkpoint {path} cannot be read: {first_line(error)}") from None


def foreign(path: Path) -> list[str]:
    """Return a note for the user if a checkpoint, or a part of it, belongs to another user (root excepted)."""
    parts = [path, *(path.iterdir() if path.is_dir() else ())]
    others = {part.lstat().st_uid for part in parts} - {os.geteuid(), 0}
    return [f"{path} belongs to user {_user(uid)}: only tensors and numbers are read from it" for uid in sorted(others)]


def load_weights(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], source: Path) -> None:
    """Load `tensors` into the unwrapped model; raises WorkerError naming what differs.

    Tied tensors may have any of their names.
    """
    here = checkpoint.trained_state(model)
    foreign = f"checkpoint {source} belongs to a different model"
    shapes = {key: tensor.shape for key, tensor in tensors.items()}
    _compare_shapes({key: tensor.shape for key, tensor in here.items()}, shapes, foreign)
    tied = _find_tied(here, tensors, foreign)
    needed = {key: t.shape for key, t in here.items() if key in tensors or checkpoint.memory_key(t) not in tied}
    compare(needed, shapes, source)
    model.load_state_dict(tensors, strict=False)  # strict does not know tied names


def compare(model: Mapping[str, torch.Size], stored: Mapping[str, torch.Size], source: Path) -> None:
    """Raise WorkerError naming what differs between the tensors of a model and of a checkpoint, names to shapes."""
    foreign = f"checkpoint {source} belongs to a different model"
    _compare_shapes(model, stored, foreign)
    missing = [key for key in model if key not in stored]
    unexpected = [key for key in stored if key not in model]
    parts = [f"lacks {_some(missing)}"] * bool(missing) + [f"has {_some(unexpected, 'extra tensor')}"] * bool(
        unexpected
    )
    if parts:
        raise WorkerError(f"{foreign}: the checkpoint {' and '.join(parts)}")


def _compare_shapes(model: Mapping[str, torch.Size], stored: Mapping[str, torch.Size], foreign: str) -> None:
    for key, shape in model.items():
        if key in stored and stored[key] != shape:
            saved, wanted = tuple(stored[key]), tuple(shape)
            raise WorkerError(f"{foreign}: {key} has shape {saved} in the checkpoint, but {wanted} in the model")


def _find_tied(here: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor], foreign: str) -> dict[Any, str]:
    """Return a name for the memory of each tensor that is in both; raises WorkerError where names of one differ."""
    tied: dict[Any, str] = {}
    for key in here.keys() & tensors.keys():
        twin = tied.setdefault(checkpoint.memory_key(here[key]) or key, key)
        if twin != key and not torch.equal(tensors[twin], tensors[key]):
            first, second = sorted((twin, key))
            raise WorkerError(f"{foreign}: {first} and {second} are tied in the model, but differ in the checkpoint")
    return tied


def check_same_order(state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise WorkerError (status 2) if a setting differs that changes the order of samples.

    `state["settings"]` are those of the checkpoint, `settings` those of this run; keys that only one has are ignored.
    """
    then = state.get("settings", {})
    for key in DATA_ORDER:
        if key not in then or key not in settings or then[key] == settings[key]:
            continue
        if key == "data":
            what, remedy = "the checkpoint is from a run with different data", "use the same data"
        else:
            what = f"the checkpoint was saved with {key}={then[key]}, but this run has {key}={settings[key]}"
            remedy = f"set {key}={then[key]}"
        raise WorkerError(
            f"cannot resume with the same order of samples: {what}; {remedy}, or start over with resume=no",
            status=2,
        )


def check_not_past(path: Path, epoch: int, start: int, steps: int) -> None:
    """Raise WorkerError (status 2) if a .pt file has finished more than a run's steps."""
    if start > steps:
        raise WorkerError(
            f"resume={path} has finished {plural(epoch, 'epoch')}, which is step {start:,}, but this run ends at step"
            f" {steps:,}: set steps=0 and more epochs (of a file without its optimizer_state_dict only the weights are"
            " used)",
            status=2,
        )


def _find_own(own: Path) -> tuple[Path | None, list[str]]:
    path, skipped = checkpoint.newest_valid(own)
    if path is None and skipped:
        skipped.append(f"no valid checkpoint in {own}: starting from the beginning")
    return path, skipped


def _find_in(path: Path) -> tuple[Path, list[str]]:
    if (path / checkpoint.MANIFEST).exists() or (path / checkpoint.WEIGHTS).exists():
        try:
            checkpoint.verify(path)
        except checkpoint.BadCheckpoint as bad:
            raise WorkerError(f"checkpoint {path} is not valid: {bad}") from None
        return path, []
    newest, skipped = checkpoint.newest_valid(path)
    if newest is not None:
        return newest, skipped
    if skipped:
        raise WorkerError(f"no valid checkpoint in {path}: {'; '.join(skipped)}")
    raise WorkerError(f"resume={str(path)!r} contains no checkpoint (a folder such as step-00000010)", status=2)


def _hint(resume: str, path: Path) -> str:
    keywords = ["auto", "no"] if os.sep not in resume else []
    while path != path.parent and not path.parent.is_dir():
        path = path.parent
    return suggestion(path.name, [*keywords, *os.listdir(path.parent)])


def _load_folder(path: Path) -> Loaded:
    from safetensors.torch import load_file

    try:
        state = json.loads(atomic_files.read_small(path / checkpoint.STATE))
        trainer = torch.load(path / checkpoint.TRAINER, map_location="cpu", weights_only=True)
        return Loaded(int(state["step"]), state, load_file(path / checkpoint.WEIGHTS), trainer)
    except Exception as error:  # the errors of safetensors, torch and json have no common class
        raise WorkerError(f"checkpoint {path} cannot be read: {first_line(error)}") from None


def _load_file(path: Path) -> Loaded:
    """Return the weights of a .pt file, and if it has both the epochs that it has finished with its optimizer."""
    whole = _load_content(path)
    weights = _find_weights(path, whole)
    tensors, epoch = _plain_names(weights), _finished_epochs(path, whole.get("epoch"))
    if epoch is not None and isinstance(whole.get("optimizer_state_dict"), dict):
        state = epoch_file.own_state(whole)
        trainer = {"optimizer": whole["optimizer_state_dict"], "scaler": whole.get("scaler_state_dict")}
        return Loaded(state.get("step") or 0, state, tensors, trainer, epoch=epoch)
    notes = () if weights is whole else _notes_on(path, whole)
    return Loaded(0, {}, tensors, None, notes)


def _find_weights(path: Path, whole: dict[Any, Any]) -> dict[Any, Any]:
    """Return the weights in a file, which are all of it or under a usual name; raises WorkerError."""
    nested = (whole[key] for key in ("model_state_dict", "state_dict", "model") if isinstance(whole.get(key), dict))
    weights = next(nested, whole)
    if not weights or not all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in weights.items()):
        holds = f": it contains {_some([str(key) for key in whole], 'key')}" if whole else ""
        raise WorkerError(f"{path} has no model_state_dict{holds}")
    return weights


def _load_content(path: Path) -> dict[Any, Any]:
    """Return the mapping in a PyTorch file, empty if it has something else; raises WorkerError."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if "weights only" not in str(error).lower():
            raise WorkerError(f"{path} cannot be read as a PyTorch file: {first_line(error)}") from None
        named = "".join(f" ({name})" for name in re.findall(r"GLOBAL (\S+)", str(error))[:1])
        raise WorkerError(
            f"refusing to load {path}: it contains more than tensors and numbers{named}, so loading it could run"
            " arbitrary code; save only the weights: torch.save({'model_state_dict': model.state_dict()}, …)"
        ) from None
    return content if isinstance(content, dict) else {}


def _finished_epochs(path: Path, epoch: object) -> int | None:
    """Return how many epochs a file has finished, None if it does not say.

    Scripts count from 0 on, but name their files from 1 on: `checkpoint_epoch_5.pt` with epoch 4 has finished five.
    """
    number = as_int(epoch)
    if number is None or number < 0:
        return None
    named = re.search(r"epoch[_-]?([0-9]{1,9})\.", path.name)
    return number + 1 if named and int(named[1]) == number + 1 else number


def _notes_on(path: Path, whole: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is left out of a file that has more than weights, for the user."""
    epoch = f" (epoch {whole['epoch']})" if whole.get("epoch") is not None else ""
    note = f"{path}: only the weights were loaded{epoch}; starting at step 0"
    return (note, f"{path}: its optimizer_state_dict is ignored") if "optimizer_state_dict" in whole else (note,)


def _plain_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Remove the prefixes of DistributedDataParallel (`module.`) and torch.compile (`_orig_mod.`) from the names."""
    plain = {key.replace("_orig_mod.", ""): tensor for key, tensor in tensors.items()}
    if all(key.startswith("module.") for key in plain):
        return {key.removeprefix("module."): tensor for key, tensor in plain.items()}
    return plain


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _some(names: list[str], what: str = "tensor") -> str:
    shown = ", ".join(names[:3])
    return f"{len(names)} {what}{'s' * (len(names) != 1)} ({shown}{', …' if len(names) > 3 else ''})"
