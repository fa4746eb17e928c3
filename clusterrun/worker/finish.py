"""Train, then leave the finished model where it can be used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from . import epoch
from .distenv import DistEnv, RunEnv
from .errors import WorkerError
from .progress import here
from .work import Work


def output_folder(config: Any, run: RunEnv) -> Path | None:
    """Where the finished model goes: `save_path`, else the run's folder; None for a worker started by hand without."""
    if config.save_path:
        return Path(config.save_path).expanduser().absolute()
    return run.run_dir / "model" if run.run_dir else None


def cache_folder(run: RunEnv) -> Path:
    """Where prepared data is kept for the next run: in the project's own folder."""
    return (run.run_dir.parent.parent if run.run_dir else Path(".clusterrun").absolute()) / "cache"


def train_and_leave(work: Work, config: Any, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    """Train on all ranks; then rank 0 writes an unwrapped Hugging Face folder, and pushes it where that is asked for.

    Nothing is written for a run that stopped to be resumed. Raises WorkerError before the first step where the folder
    could not be written after the last.
    """
    from .models import export
    from .train import train

    folder = output_folder(config, run)
    if folder is not None and dist.rank == 0:
        export.check_target(folder, run.run_id)
    if config.push_to_hub and folder is None:
        raise WorkerError("push_to_hub needs save_path: the folder to push", status=2)
    if not train(work, config, dist, run, device) or dist.rank != 0 or folder is None:
        return
    here.enter("saving")
    export.export(work.model, work.tokenizer, folder, run_id=run.run_id, card={"task": config.task}, files=work.files)
    print(f"model written to {folder}", flush=True)
    if config.push_to_hub:
        epoch.check()
        problem = export.push_to_hub(folder, config.push_to_hub, os.environ)
        print(f"clusterrun: {problem or f'pushed to {config.push_to_hub}'}", flush=True)
