"""Checkpoints as the loop sees them: where to go on, when to save, and how a stopped run is left."""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from .. import end_records, epoch
from ..distenv import DistEnv, RunEnv
from ..errors import WorkerError
from . import checkpoint, holding, resume, stopping
from .background_writer import Saver
from .consensus import Agreement
from .sizes import BatchSizes

KEPT = ("first_val_loss", "best")  # of an earlier attempt's state


class Keeper:
    """Finds the checkpoint to go on from (rank 0 looks, all load), and saves on rank 0."""

    def __init__(self, config: Any, dist: DistEnv, run: RunEnv, agreement: Agreement) -> None:
        self._config = config
        self._dist = dist
        self._run = run
        self._state: dict[str, Any] = {}
        self._saver: Saver | None = None
        folder = Path(config.checkpoint_dir).expanduser() if config.checkpoint_dir else None
        if folder is None and run.run_dir is not None:
            folder = run.run_dir / "checkpoints"
        self._folder = folder
        self._hold: holding.Hold | None = None
        found: tuple[str, list[str]] = ("", [])
        if dist.rank == 0:
            taken: list[str] = []
            if folder is not None:
                self._hold, taken = _take(folder, run)
            path, notes = self._find(folder or Path("checkpoints"))
            found = (str(path or ""), [*taken, *notes, *(resume.foreign(path) if path else [])])
        path_text, self._notes = agreement.word(found)
        self._from = Path(path_text) if path_text else None
        self._loaded = resume.load(self._from) if self._from else None
        if self._loaded:
            self._state = {k: self._loaded.state[k] for k in KEPT if k in self._loaded.state}

    @property
    def saving_s(self) -> float:
        """Seconds from handing the last checkpoint over until it was durable; 0 before the first."""
        return self._saver.seconds if self._saver else 0.0

    @property
    def start(self) -> int:
        """The step to go on after; 0 for a run from the beginning."""
        return self._loaded.step if self._loaded else 0

    def sizes(self, asked: BatchSizes) -> BatchSizes:
        """The batch sizes to go on with: what auto_micro_batch had found, else what is asked for."""
        settings = self._loaded.state.get("settings", {}) if self._loaded else {}
        micro = settings.get("micro_batch_size", 0)
        share = asked.global_batch_size // asked.world_size
        if not self._config.auto_micro_batch or not micro or share % micro:
            return asked
        return BatchSizes(asked.global_batch_size, micro, share // micro, asked.world_size)

    def restore(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, settings: dict
    ) -> None:
        """Load the checkpoint, if there is one, and keep `settings` for those to come.

        Raises WorkerError for a checkpoint of another model, or of another data order.
        """
        self._state["settings"] = settings
        if self._loaded is None or self._from is None:
            return
        resume.fit(model, self._loaded.tensors, self._from)  # first: another model is other data, too
        resume.same_run(self._loaded.state, settings)
        if self._loaded.trainer:
            optimizer.load_state_dict(self._loaded.trainer["optimizer"])
            if self._loaded.trainer.get("scaler"):
                scaler.load_state_dict(self._loaded.trainer["scaler"])
        self._loaded.tensors.clear()  # a second copy of the model is not needed any more
        if self._loaded.trainer:
            self._loaded.trainer.clear()

    def announce(self) -> list[str]:
        """What to tell about the start."""
        if self._from is None:
            return self._notes
        notes = self._loaded.notes if self._loaded else ()
        return [*self._notes, *notes, f"resumed from {self._from} (step {self.start})"]

    def first_val(self, value: float | None) -> float | None:
        """The held-out loss before the first step of the run, over all its attempts; `value` sets it."""
        if value is not None:
            self._state["first_val_loss"] = value
        return self._state.get("first_val_loss")

    def save(
        self,
        step: int,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        val_loss: float | None = None,
    ) -> float:
        """Hand a checkpoint to the writer; returns the seconds that training stood still (0 on other ranks)."""
        if self._folder is None or self._hold is None:  # rank 0 alone has the hold
            return 0.0
        began = time.monotonic()
        if self._saver is None:
            own = self._from if self._from and self._from.parent == self._folder else None
            self._saver = Saver(self._folder, self._config.keep_last, own, self._run.run_id, self._hold.check)
        self._saver.wait()  # before the copy is made: two of them would be held otherwise
        best = val_loss is not None and val_loss < self._state.get("best", {}).get("val_loss", math.inf)
        if best:
            self._state["best"] = {"step": step, "val_loss": val_loss}
        state = self._state | {"step": step, "world_size": self._dist.world_size, "run_id": self._run.run_id}
        self._saver.save(checkpoint.take(model, optimizer, scaler, state, step), best=best)
        return time.monotonic() - began

    def stop(
        self,
        step: int,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        reason: str,
    ) -> str:
        """Save this step, wait until it is durable, and leave the marker that tells the batch script "stopped".

        Returns the sentence to print; raises WorkerError when the step could not be saved.
        """
        if self._dist.rank != 0:
            return ""
        if self._folder is None:
            raise WorkerError(f"asked to stop by {reason} at step {step}, and nothing was saved: set checkpoint_dir")
        saved = f"saved in {self._folder}"
        if step > 0 and not self._is_saved(step):
            self.save(step, model, optimizer, scaler)
            assert self._saver is not None
            self._saver.wait()
            if self._saver.last_saved != step:
                raise WorkerError(
                    f"asked to stop by {reason}, but step {step} could not be saved: {self._saver.failure}"
                )
        elif step == 0:
            saved = "nothing to save yet"
        epoch.check()
        stopping.clear_stop_file(self._run.run_dir)
        if self._run.attempt_dir is not None:
            end_records.write_json(
                self._run.attempt_dir / "stopped", {"step": step, "reason": reason, "time": time.time()}
            )
        return f"stopped at step {step} by {reason}: {saved}"

    def close(self) -> None:
        """Wait for the last write."""
        if self._saver is not None:
            self._saver.wait()

    def _find(self, folder: Path) -> tuple[Path | None, list[str]]:
        """Where to go on from. After a requeue that is this run's own newest checkpoint, whatever `resume` says.

        Refuses a folder with another run's checkpoints unless it resumes from the newest: saving could replace them.
        """
        asked = self._config.resume or "auto"
        newest, notes = resume.find("auto", folder)
        owner = checkpoint.run_of(newest) if newest else None
        if asked == "auto" or (newest and owner == self._run.run_id != "none"):
            return newest, notes
        chosen, notes = resume.find(asked, folder)
        if newest and (chosen is None or chosen.resolve() != newest.resolve()):
            raise WorkerError(
                f"resume={asked}, but {folder} holds checkpoints of run {owner}: name another checkpoint_dir, or"
                " leave resume out to go on from them",
                status=2,
            )
        return chosen, notes

    def _is_saved(self, step: int) -> bool:
        if self._saver is not None:
            self._saver.wait()
            return self._saver.last_saved == step
        return self._from is not None and self._from.parent == self._folder and self.start == step


def _take(folder: Path, run: RunEnv) -> tuple[holding.Hold, list[str]]:
    """Refuse, before hours of training, a folder that is another run's, or in which nothing could ever be saved."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        return holding.take(folder, run)
    except OSError as error:
        why = "it is a file" if folder.is_file() else error.strerror
        raise WorkerError(f"checkpoint_dir={folder}: nothing can be written there ({why})", status=2) from None
