"""The output of rank 0: lines for people, metrics.jsonl for programs, and TensorBoard and W&B if set."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...base.decode import as_int, parse_object
from ...base.errors import WorkerError
from ...base.gpus import flops_per_token
from ...run_folder import atomic, attempt_number
from ..node.log import say
from ..rank.distenv import RunEnv


def model_flops_per_token(model: Any, seq_len: int) -> float | None:
    """Return the FLOPs per token of a model in training; None if its configuration has no layers or width."""
    config = getattr(model, "config", None)
    layers, width = getattr(config, "num_hidden_layers", None), getattr(config, "hidden_size", None)
    if not layers or not width:
        return None
    return flops_per_token(sum(p.numel() for p in model.parameters()), layers, width, seq_len)


class Report:
    """Prints and records the progress of a run on rank 0. On other ranks every method does nothing."""

    def __init__(self, rank: int, run: RunEnv, config: Any, start_step: int, settings: dict[str, Any]) -> None:
        self.enabled = rank == 0
        folder = run.run_dir if self.enabled else None
        self.metrics = folder / "metrics.jsonl" if folder else None
        self.samples = folder / "samples.jsonl" if folder else None
        self._board: Any = None
        self._wandb: Any = None
        self._progress: Any = None
        if not self.enabled:
            return
        for file in filter(None, (self.metrics, self.samples)):
            _drop_rows_after(file, start_step)
        folder = folder or Path()
        attempt_number.check()
        if config.tensorboard:
            self._board = _open_tensorboard(folder / "tensorboard", start_step)
        if config.wandb:
            self._wandb = _open_wandb(config.wandb, run.run_id, folder, settings)

    def say(self, text: str) -> None:
        """Print a line."""
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False)
        elif self.enabled and text:
            print(text, flush=True)

    def start(self, step: int, steps: int) -> None:
        """Show a progress bar if stdout is a terminal."""
        if not self.enabled or not sys.stdout.isatty():
            return
        try:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns)
        self._progress.start()
        self._progress.add_task("training", total=steps, completed=step)

    def advance(self, step: int) -> None:
        """Move the progress bar to a step."""
        if self._progress:
            self._progress.update(self._progress.task_ids[0], completed=step)

    def row(self, step: int, steps: int, values: dict[str, float | None]) -> None:
        """Record a step's metrics and print the main ones. Values that are None are left out."""
        if not self.enabled:
            return
        known = {k: v for k, v in values.items() if v is not None}
        row = {"step": step, **known, "time": time.time()}
        # NaN is not valid JSON
        _append(self.metrics, {k: v if math.isfinite(v) else str(v) for k, v in row.items()})
        self.say(_line(step, steps, known))
        if self._board is not None or self._wandb is not None:
            self._send(step, known)

    def _send(self, step: int, known: dict[str, float]) -> None:
        with _report_write_error("to TensorBoard or W&B"):
            attempt_number.check()
            if self._board is not None:
                for key, value in known.items():
                    self._board.add_scalar(key, value, step)
                self._board.flush()
            if self._wandb is not None:
                self._wandb.log(known, step=step)

    def sample(self, step: int, prompt: str, text: str) -> None:
        """Record a generated sample."""
        _append(self.samples, {"step": step, "prompt": prompt, "text": text})

    def close(self) -> None:
        """Close the progress bar, TensorBoard and W&B."""
        for close in (
            self._progress and self._progress.stop,
            self._board and self._board.close,
            self._wandb and self._wandb.finish,
        ):
            if close:
                close()
        self._progress = self._board = self._wandb = None


def _line(step: int, steps: int, values: dict[str, float]) -> str:
    parts = [f"step {step:>{len(str(steps))}}/{steps}"]
    for key, label, form in (
        ("loss", "loss", ".3f"),
        ("val_loss", "val", ".3f"),
        ("lr", "lr", ".1e"),
        ("grad_norm", "norm", ".2f"),
        ("tokens_per_second", "tok/s", ",.0f"),
        ("mfu", "MFU", ".1%"),
    ):
        if key in values:
            parts.append(f"{label} {values[key]:{form}}")
    shown = ("loss", "val_loss", "lr", "grad_norm", "tokens_per_second", "mfu")
    quiet = ("epoch", "step_s", "trained_s", "cores_used", "data_wait_s", "save_stall_s", "memory_gib", "seconds")
    parts += [f"{k} {v:.3f}" for k, v in values.items() if k not in shown + quiet]
    return "  ".join(parts)


def _append(file: Path | None, row: dict[str, Any]) -> None:
    if file is None:
        return
    line = json.dumps(row, ensure_ascii=False) + "\n"
    with _report_write_error(file.name):
        attempt_number.check()  # says more of a missing folder than `open`
        with file.open("a", encoding="utf-8") as out:
            attempt_number.check()
            out.write(line)


@contextlib.contextmanager
def _report_write_error(what: str) -> Iterator[None]:
    """Report an OSError in one line: a full disk must not end the training."""
    try:
        yield
    except OSError as error:
        say(f"cannot write {what}: {error.strerror}")


def _drop_rows_after(file: Path, step: int) -> None:
    """Drop the rows that a resumed run will write again, and a last line cut by a crash."""
    if not file.exists():
        return
    kept = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            at = as_int(parse_object(line).get("step", 0))
        except ValueError:
            continue
        # a run that starts from the beginning measures step 0 again
        if at is not None and at <= step and step > 0:
            kept.append(line)
    atomic.replace(file, "".join(line + "\n" for line in kept).encode(), mode=None, check=attempt_number.check)


def _open_tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise WorkerError(
            f"tensorboard=true, but the tensorboard package is not installed ({error}): pip install tensorboard",
            status=2,
        ) from None
    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)


def _open_wandb(project: str, run_id: str, folder: Path, settings: Any) -> Any:
    """Open (or, after a restart, reopen) the W&B run of this run's id. Return None if W&B is not reachable."""
    try:
        import wandb
    except ImportError as error:
        raise WorkerError(
            f"wandb={project}, but the wandb package is not installed ({error}): pip install wandb", status=2
        ) from None
    try:
        return wandb.init(project=project, id=run_id, name=run_id, resume="allow", dir=str(folder), config=settings)
    except Exception as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        say(f"wandb.init failed ({line[:200]}); continuing without W&B")
        return None
