"""Checkpoints for the training loop: find one to resume from, save, and save before an early stop."""

from __future__ import annotations

import dataclasses
import errno
import functools
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ...base.decode import as_number
from ...base.errors import WorkerError
from ...run_folder import attempt_number, ends
from ...run_folder.atomic import Check
from ..rank.distenv import DistEnv, RunEnv
from . import checkpoint, epoch_file, folder_owner, resume, stopping
from .background_writer import BackgroundWriter, Write
from .best import BestModel, load_best
from .consensus import Consensus
from .sizes import BatchSizes

KEPT_STATE = ("first_val_loss", "best")  # keys of the state that a resumed run keeps


class Checkpointer:
    """Rank 0 finds the checkpoint to resume from, all ranks load it, and rank 0 saves.

    `trained_s` are the seconds that the steps up to the loaded checkpoint took in this run, and from then on those up
    to the next one; None if they are not known. `start` is the step of the loaded checkpoint, 0 for a run from the
    beginning; of a .pt file it is known after `restore`. `best` is the best evaluation, which a resumed run keeps too.
    """

    def __init__(self, config: Any, dist: DistEnv, run: RunEnv, consensus: Consensus) -> None:
        self._config = config
        self._dist = dist
        self._run = run
        self._state: dict[str, Any] = {}
        self._writer: BackgroundWriter | None = None
        self._copied: tuple[checkpoint.Snapshot, bool] | None = None
        self._folder = _folder(config, run)
        self._may_write: Check | None = None  # only rank 0 owns the folder
        self._notes: list[str]
        start, self._notes = consensus.broadcast(self._choose_start() if dist.rank == 0 else ("", []))
        self._from = Path(start) if start else None
        self._loaded = self._read(self._from) if self._from else None
        self.start = self._loaded.step if self._loaded else 0
        self.best = BestModel(config, dist.rank)
        self.trained_s: float | None = 0.0
        if self._loaded:
            self._state = {k: self._loaded.state[k] for k in KEPT_STATE if k in self._loaded.state}
            if self._loaded.state.get("run_id") == run.run_id:
                self.trained_s = as_number(self._loaded.state.get("trained_s"))

    def _choose_start(self) -> tuple[str, list[str]]:
        """Take the folder over, and return the checkpoint to start from (empty: none) with lines for the user."""
        takeover: list[str] = []
        if self._folder is not None:
            self._may_write, takeover = _take(self._folder, self._run)
        path, notes = self._find(self._folder or Path("checkpoints"))
        return str(path or ""), [*takeover, *notes, *(resume.foreign(path) if path else [])]

    def _read(self, path: Path) -> resume.Loaded:
        """Load a checkpoint into host memory; raises WorkerError."""
        if checkpoint.is_in_shards(path):
            raise other_parallel(path, "fsdp")
        return resume.load(path)

    @property
    def saving_s(self) -> float:
        """Seconds from the last `write` until the checkpoint was on disk; 0 before the first."""
        return self._writer.seconds if self._writer else 0.0

    def sizes(self, configured: BatchSizes) -> BatchSizes:
        """Return the batch sizes to use: those that auto_micro_batch found before, else the configured ones."""
        settings = self._loaded.state.get("settings", {}) if self._loaded else {}
        micro = settings.get("micro_batch_size", 0)
        share = configured.global_batch_size // configured.world_size
        if not self._config.auto_micro_batch or not micro or share % micro:
            return configured
        return BatchSizes(configured.global_batch_size, micro, share // micro, configured.world_size)

    def restore(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        settings: dict[str, Any],
        steps_per_epoch: int,
    ) -> None:
        """Load the checkpoint, if any, into the model and optimizer; keep `settings` for later checkpoints.

        Raises WorkerError for a checkpoint of another model, or of another data order.
        """
        self._state["settings"] = settings
        if self._loaded is None or self._from is None:
            return
        # first: with another model the data differ as well
        self._load_into(model, optimizer, scaler, self._from, self._loaded)
        resume.check_same_order(self._loaded.state, settings)
        if self._loaded.epoch is not None:
            self.start = self._loaded.step or self._loaded.epoch * steps_per_epoch
            resume.check_not_past(self._from, self._loaded.epoch, self.start, settings["steps"])
        load = functools.partial(self._load_best, self._from, model)
        self.best.restore(self._loaded.state.get("best_model") or {}, model, self.start, load)

    def _load_into(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        path: Path,
        loaded: resume.Loaded,
    ) -> None:
        resume.load_weights(model, loaded.tensors, path)
        if loaded.trainer:
            if loaded.epoch is None:
                optimizer.load_state_dict(loaded.trainer["optimizer"])
            elif not epoch_file.continue_adam(optimizer, model, loaded.trainer["optimizer"]):
                self._notes.append(f"{path}: its optimizer_state_dict is not AdamW's for this model, and is left out")
            if loaded.trainer.get("scaler"):
                scaler.load_state_dict(loaded.trainer["scaler"])
            loaded.trainer.clear()
        loaded.tensors.clear()  # free the second copy of the model

    def _load_best(self, path: Path, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        return load_best(path)

    def announce(self) -> list[str]:
        """Return the lines to print at the start."""
        if self._from is None:
            return self._notes
        notes = self._loaded.notes if self._loaded else ()
        return [*self._notes, *notes, f"resumed from {self._from} (step {self.start})"]

    def first_val(self, value: float | None) -> float | None:
        """Return the validation loss before the run's first step, in its first attempt; `value` sets it."""
        if value is not None:
            self._state["first_val_loss"] = value
        loss: float | None = self._state.get("first_val_loss")
        return loss

    def copy(
        self,
        step: int,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        val_loss: float | None = None,
    ) -> float:
        """Copy a step's state for `write`; return the seconds that this blocked (0 on ranks that don't save)."""
        if self._folder is None or not self.saves:
            return 0.0
        began = time.monotonic()
        if self._writer is None:
            self._writer = self._new_writer(self._folder)
        self._writer.wait()  # before the copy is made: else two copies would be in memory
        best = val_loss is not None and val_loss < self._state.get("best", {}).get("val_loss", math.inf)
        if best:
            self._state["best"] = {"step": step, "val_loss": val_loss}
        state = self._state | {"step": step, "world_size": self._dist.world_size, "run_id": self._run.run_id}
        state |= {"trained_s": self.trained_s, "best_model": self.best.state()}
        snapshot = self._take(model, optimizer, scaler, state, step)
        self._copied = dataclasses.replace(snapshot, best=self.best.unsaved(step)), best
        return time.monotonic() - began

    @property
    def saves(self) -> bool:
        """Whether this rank writes checkpoints, or a part of each."""
        return self._dist.rank == 0

    def _new_writer(self, folder: Path, write: Write | None = None) -> BackgroundWriter:
        own = self._from if self._from and self._from.parent == self._folder else None
        check = self._may_write or attempt_number.check
        return BackgroundWriter(folder, self._config.keep_last, own, self._run.run_id, check, write)

    def _take(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        state: dict[str, Any],
        step: int,
    ) -> checkpoint.Snapshot:
        return checkpoint.take(model, optimizer, scaler, state, step)

    def write(self) -> None:
        """Begin to write what was copied last; what a run that resumes from it won't write again is on disk by now."""
        if self._writer is not None and self._copied is not None:
            self._writer.save(*self._copied)
            self._copied = None

    def stop(
        self,
        step: int,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        reason: str,
    ) -> str:
        """Save this step, wait until it is on disk, and write the file `stopped`, which the batch script checks.

        Return the line to print. Raises WorkerError if the step could not be saved.
        """
        if self.saves and step > 0 and not self._is_saved(step):
            self.copy(step, model, optimizer, scaler)
            self.write()
            self.close()
        if self._dist.rank != 0:
            return ""
        if self._folder is None:
            raise WorkerError(
                f"stopping at step {step} ({reason}): nothing was saved, because checkpoint_dir is not set"
            )
        if self._writer is not None and self._writer.last_saved != step:
            raise WorkerError(f"stopping ({reason}), but step {step} could not be saved: {self._writer.failure}")
        saved = f"saved in {self._folder}" if step > 0 else "nothing to save yet"
        attempt_number.check()
        stopping.clear_stop_file(self._run.run_dir)
        line = f"stopped at step {step} by {reason}: {saved}"
        if self._run.attempt_dir is not None:
            ends.write_stopped(self._run.attempt_dir, step, reason, saved, line)
        return line

    def close(self) -> None:
        """Wait until the last checkpoint is written."""
        if self._writer is not None:
            self._writer.wait()

    def _find(self, folder: Path) -> tuple[Path | None, list[str]]:
        """Find the checkpoint to resume from: after a requeue this run's newest one, whatever `resume` says.

        Raises WorkerError for a folder with another run's checkpoints, unless the newest is resumed from: saving could
        replace them.
        """
        choice = self._config.resume or "auto"
        newest, notes = resume.find("auto", folder)
        owner = checkpoint.run_of(newest) if newest else None
        if choice == "auto" or (newest and owner == self._run.run_id != "none"):
            return newest, notes
        chosen, notes = resume.find(choice, folder)
        if newest and (chosen is None or chosen.resolve() != newest.resolve()):
            raise WorkerError(
                f"resume={choice}, but {folder} has checkpoints of"
                f" {'another run' if owner in (None, 'none') else f'run {owner}'}:"
                " set another checkpoint_dir, or"
                " omit resume to continue from them",
                status=2,
            )
        return chosen, notes

    def _is_saved(self, step: int) -> bool:
        if self._writer is not None:
            self._writer.wait()
            return self._writer.last_saved == step
        is_own = self._from is not None and self._from.parent == self._folder and self._from.is_dir()
        return is_own and self.start == step


def other_parallel(path: Path, saved: str) -> WorkerError:
    """Return the error for a checkpoint that needs another value of `parallel`."""
    return WorkerError(f"{path} was saved with parallel={saved}: set parallel={saved}, or resume=no", status=2)


def _folder(config: Any, run: RunEnv) -> Path | None:
    """Return where this run keeps its checkpoints, None outside a run."""
    if config.checkpoint_dir:
        return Path(config.checkpoint_dir).expanduser()
    return run.run_dir / "checkpoints" if run.run_dir is not None else None


def _take(folder: Path, run: RunEnv) -> tuple[Check, list[str]]:
    """Take the folder for this run; raise WorkerError before training if it is another run's or not writable."""
    try:
        attempt_number.check()  # of a project that was renamed meanwhile, nothing is created again
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        return folder_owner.claim(folder, run)
    except OSError as error:
        why = "it is a file" if folder.is_file() else error.strerror
        # a disk that is full is no wrong request: the next launch may find space
        status = 1 if error.errno in (errno.ENOSPC, errno.EDQUOT) else 2
        raise WorkerError(f"checkpoint_dir={folder}: not writable ({why})", status=status) from None
