"""`progress.json` of an attempt: how far its training is, as rank 0 reports it, or as the script prints it.

The supervisor writes it (worker/job/progress_follower.py), so that `list`, `status`, `top` and `logs -f` need no log.
It stays after the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..base.decode import as_number, as_text, parse_fields
from .files import read_json, write_record

FILE = "progress.json"
FIRST_S = 10.0
"""Seconds of steps after which their speed is known."""


class TrainingProgress(NamedTuple):
    """A training did ``step``, of ``steps``, at ``stepped``; times are in seconds since 1970. None: not known.

    ``first_step`` is the first step that its launch reported or printed, at ``first_step_at``. The speed is measured
    from ``warm_step``, done at ``warm_step_at``: the slow first steps do not count. ``nan_losses`` is how many losses
    up to this step were NaN, in a row; then ``loss`` is None.
    """

    step: int
    stepped: float
    steps: int | None = None
    loss: float | None = None
    first_step: int | None = None
    first_step_at: float | None = None
    warm_step: int | None = None
    warm_step_at: float | None = None
    nan_losses: int | None = None

    @property
    def steps_per_second(self) -> float | None:
        """The mean since ``warm_step``, with the pauses to evaluate and to save; None during the first seconds."""
        if self.warm_step is None or self.warm_step_at is None:
            return None
        steps, seconds = self.step - self.warm_step, self.stepped - self.warm_step_at
        return steps / seconds if steps > 0 and seconds >= FIRST_S else None


def parse(document: Mapping[str, Any]) -> TrainingProgress | None:
    """Return the progress in such a document, or in a rank's progress record; None without a step."""
    found = parse_fields(TrainingProgress, document)
    if found["step"] is None or found["stepped"] is None or found["step"] < 0:
        return None
    return TrainingProgress(**found)


def write(
    attempt: Path, progress: TrainingProgress, losses: Sequence[tuple[int, float]] = (), warning: str = ""
) -> None:
    """Replace the file; ``losses`` are a few of the launch's losses with their steps, oldest first; raises OSError.

    ``warning`` is what is wrong with them, in a sentence.
    """
    write_record(attempt / FILE, {**progress._asdict(), "losses": losses, "warning": warning})


def load_warning(attempt: Path) -> str:
    """Return what is wrong with the launch's losses; empty if nothing is."""
    return as_text((read_json(attempt / FILE) or {}).get("warning"))


def load_losses(attempt: Path) -> list[tuple[float, float]]:
    """Return a few of the launch's losses, oldest first, each behind its step."""
    losses = (read_json(attempt / FILE) or {}).get("losses")
    points = [_as_point(one) for one in losses] if isinstance(losses, list) else []
    return [point for point in points if point is not None]


def _as_point(pair: object) -> tuple[float, float] | None:
    match pair:
        case [step, loss]:
            step, loss = as_number(step), as_number(loss)
            return None if step is None or loss is None else (step, loss)
    return None


def load(attempt: Path) -> TrainingProgress | None:
    """Return what the file says, None without one or where it is damaged."""
    return parse(read_json(attempt / FILE) or {})
