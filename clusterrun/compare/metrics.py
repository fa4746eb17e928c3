"""Compare the metrics of two trainings: their last and best values."""

from __future__ import annotations

from itertools import compress

from clusterrun.base.decode import as_number
from clusterrun.compare import Change, find_changes
from clusterrun.records import progress
from clusterrun.records.run_record import RunRecord

_LAST = ("step", "loss", "lr", "tokens_per_second", "trained_s")
_MOST = 64 * 1024 * 1024
"""The bytes that are read of a run's metrics; those of the last steps."""


def compare_metrics(first: RunRecord, second: RunRecord) -> tuple[list[Change], tuple[RunRecord, ...]]:
    """Return the values that differ, and the runs that have recorded none.

    Of the values of the evaluation (``val_…``) and of losses also the best is compared: the smallest loss, the largest
    of the others.
    """
    values, other_values = _load(first), _load(second)
    missing = compress((first, second), (not values, not other_values))
    return list(find_changes(values, other_values)), tuple(missing)


def _load(run: RunRecord) -> dict[str, float]:
    last: dict[str, float] = {}
    best: dict[str, float] = {}
    for row in progress.metric_rows(run, _MOST):
        for name, entry in row.items():
            value = as_number(entry)
            if value is None or not _is_compared(name):
                continue
            last[f"last {name}"] = value
            if _has_best(name):
                best[f"best {name}"] = _better(name, value, best.get(f"best {name}", value))
    return last | best or _printed(run)


def _printed(run: RunRecord) -> dict[str, float]:
    """Return the last step and loss that a script printed or reported; of the losses before, only some are kept."""
    found = progress.last_metrics(run)
    values = {"last step": found.step, "last loss": found.loss} if found is not None else {}
    return {name: value for name, value in values.items() if value is not None}


def _is_compared(name: str) -> bool:
    return name in _LAST or name.startswith("val_")


def _is_loss(name: str) -> bool:
    return "loss" in name


def _has_best(name: str) -> bool:
    return _is_loss(name) or name.startswith("val_")


def _better(name: str, value: float, other: float) -> float:
    return min(value, other) if _is_loss(name) else max(value, other)
