"""Export the finished model in Hugging Face format; the folder appears when it is complete."""

from __future__ import annotations

import copy
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.decode import parse_object
from ...base.errors import WorkerError
from ...run_folder import atomic, attempt_number
from ..hub import push_to_hub
from . import llada, lora
from .load import quiet

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["check_target", "export", "push_to_hub"]

CARD = "clusterrun.json"
NO_RUN = "none"  # the run id outside a run: no folder belongs to it


def check_target(folder: Path, run_id: str) -> Path:
    """Return `folder` as an absolute path; check that it is free or has an earlier model of this run.

    Call it before the training too. Raises WorkerError (status 2).
    """
    folder = folder.expanduser().resolve()
    if folder.exists() and not folder.is_dir():
        raise WorkerError(f"save_path={folder} is a file: give a folder", 2)
    if folder.is_dir() and any(folder.iterdir()) and not _is_of(folder, run_id):
        raise WorkerError(f"save_path={folder} already exists and does not belong to this run: give a new folder", 2)
    if folder.is_mount():  # a mount point cannot be renamed
        raise WorkerError(f"save_path={folder} is a mount point: give a folder in it, such as {folder / 'model'}", 2)
    parent = next(parent for parent in folder.parents if parent.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=f".{folder.name[:60]}.", dir=parent))  # root always may, by os.access
    except OSError as error:
        raise WorkerError(f"save_path={folder}: cannot write to {parent} ({error.strerror})", 2) from None
    return folder


def _is_of(folder: Path, run_id: str) -> bool:
    """Return whether a model in a folder is an earlier one of this run."""
    return run_id != NO_RUN and _owner(folder) == run_id


def export(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase | None,
    folder: Path,
    *,
    run_id: str,
    card: dict[str, Any],
    files: Mapping[str, str] | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    """Write model (float32 safetensors), tokenizer, `clusterrun.json` (run id, `card`) and `files` (name to text).

    `weights` are the model's, if it has only parts of them.
    Returns the absolute folder. The model may be wrapped by DDP or torch.compile, and is not changed. Raises
    WorkerError if the folder is another run's (status 2) or cannot be written, and Superseded.
    """
    from safetensors import SafetensorError

    try:
        attempt_number.check()
    except OSError as error:
        raise WorkerError(f"cannot write the model to {folder}: {error.strerror}") from None
    folder = check_target(folder, run_id)
    # a name per attempt: an older attempt that still runs must not write into it
    temporary = folder.with_name(f".{folder.name}.{run_id}.{attempt_number.number()}.tmp")
    copies = _copies(model, weights)
    try:
        for left in folder.parent.glob(f"{glob.escape(f'.{folder.name}.{run_id}.')}*tmp"):
            shutil.rmtree(left, ignore_errors=True)  # of an attempt that was killed
        temporary.mkdir(parents=True)
        with quiet():
            alone = _standalone(model, copies)
            if llada.is_from(alone.config):
                llada.save(alone, temporary)
            else:
                alone.save_pretrained(temporary)
            if tokenizer is not None:
                tokenizer.save_pretrained(temporary)
        if lora.has_adapters(model):
            lora.write_adapter(temporary, model, copies)
        for name, text in (files or {}).items():
            (temporary / name).write_text(text, encoding="utf-8")
        (temporary / CARD).write_text(json.dumps({"run_id": run_id, "card": card}, indent=2) + "\n", encoding="utf-8")
        for path in [*temporary.rglob("*"), temporary]:
            atomic.sync(path)
        _replace(temporary, folder, folder.with_name(f".{folder.name}.{run_id}.former"))
    except (OSError, SafetensorError) as error:
        raise WorkerError(f"cannot write the model to {folder}: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _copies(model: Any, weights: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    """Return the weights in host memory, in float32."""
    import torch

    return {
        name: tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in (weights or _unwrapped(model).state_dict()).items()
    }


def _unwrapped(model: Any) -> Any:
    for wrapper in ("_orig_mod", "module", "_orig_mod"):  # torch.compile around DDP or within it
        model = getattr(model, wrapper, model)
    return model


def _standalone(model: Any, weights: dict[str, torch.Tensor]) -> PreTrainedModel:
    """Return a second model with float32 copies of the weights, as saving changes the configuration."""
    import torch

    model = _unwrapped(model)
    config, generation = copy.deepcopy(model.config), copy.deepcopy(getattr(model, "generation_config", None))
    for settings in (config, generation):
        if settings is not None and hasattr(settings, "use_cache"):
            settings.use_cache = True
    with torch.device("meta"):
        alone: PreTrainedModel = type(model)(config)
    if lora.has_adapters(model):
        alone = lora.merge(alone, model, weights)
    else:
        alone.load_state_dict(weights, assign=True)
    alone.tie_weights()
    if generation is not None:  # a classifier generates nothing
        alone.generation_config = generation
    return alone


def _owner(folder: Path) -> str | None:
    try:
        return str(parse_object((folder / CARD).read_bytes())["run_id"])
    except (OSError, ValueError, KeyError):
        return None


def _replace(new: Path, folder: Path, former: Path) -> None:
    shutil.rmtree(former, ignore_errors=True)
    if folder.exists():
        attempt_number.check()
        folder.rename(former)
    attempt_number.check()
    new.rename(folder)
    atomic.sync(folder.parent)
    shutil.rmtree(former, ignore_errors=True)
