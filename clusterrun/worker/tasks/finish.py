"""Train, then save the finished model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from ...base.errors import WorkerError
from ...run_folder import attempt_number
from ..rank.distenv import DistEnv, RunEnv
from ..rank.progress import here
from ..training.work import Work


def output_folder(config: Any, run: RunEnv) -> Path | None:
    """Return the folder for the finished model: `save_path`, else in the run's folder; None if there is neither.

    A measuring run has none: half of its steps do not average the gradients.
    """
    if config.measure:
        return None
    if config.save_path:
        return Path(config.save_path).expanduser().absolute()
    return run.run_dir / "model" if run.run_dir else None


def cache_folder(run: RunEnv) -> Path:
    """Return the folder in which prepared data is kept for later runs: in the project's `.clusterrun`."""
    return (run.run_dir.parent.parent if run.run_dir else Path(".clusterrun").absolute()) / "cache"


def train_and_save(work: Work, config: Any, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    """Train on all ranks; then rank 0 saves the model in Hugging Face format, and pushes it if `push_to_hub` is set.

    A run that stopped early saves no model. Raises WorkerError before the first step if the folder is not writable.
    """
    from ..models import export, load, lora
    from ..training.loop import train

    folder = output_folder(config, run)
    if config.lora:
        load.require_trained(load.resolve(config.model), config.lora)
        lora.add(work.model, config.lora, config.model, config.seed)
    if folder is not None and dist.rank == 0:
        export.check_target(folder, run.run_id)
    if config.push_to_hub and folder is None:
        raise WorkerError("push_to_hub needs save_path, the folder to push", status=2)
    if not train(work, config, dist, run, device) or folder is None:
        return
    here.enter("saving")
    weights = _gathered_weights(work.model) if config.parallel == "fsdp" else None
    if dist.rank == 0:
        _save(work, config, folder, run, weights)


def _gathered_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the whole weights of a model that every rank has a part of; on rank 0 only, though all ranks call it."""
    from ..training import fsdp

    return fsdp.whole_weights(model)


def _save(work: Work, config: Any, folder: Path, run: RunEnv, weights: dict[str, torch.Tensor] | None) -> None:
    from ..models import export

    card = {"task": config.task, **work.card}
    export.export(work.model, work.tokenizer, folder, run_id=run.run_id, card=card, files=work.files, weights=weights)
    print(f"model written to {folder}", flush=True)
    if config.push_to_hub:
        attempt_number.check()
        problem = export.push_to_hub(folder, config.push_to_hub, os.environ)
        print(f"clusterrun: {problem or f'pushed to {config.push_to_hub}'}", flush=True)
