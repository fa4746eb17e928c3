"""Compare the metrics of two trainings: their last and best values."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from clusterrun.base.decode import parse_rows
from clusterrun.compare import Change, find_changes
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import safe_files

_LAST = ("step", "loss", "lr", "tokens_per_second", "trained_s")
_MOST = 64 * 1024 * 1024
"""The bytes that are read of a run's metrics; those of the last steps."""


def compare_metrics(first: RunRecord, second: RunRecord) -> tuple[list[Change], tuple[RunRecord, ...]]:
    """Return the values that differ, and the runs that have recorded none.

    Of the values of the evaluation (``val_…``) and of losses also the best is compared: the smallest loss, the largest
    of the others.
    """
    found = [_load(run) for run in (first, second)]
    missing = tuple(run for run, values in zip((first, second), found, strict=True) if not values)
    return ([] if len(missing) == 2 else list(find_changes(*found))), missing


def _load(run: RunRecord) -> dict[str, float]:
    try:
        with safe_files.open_file(run.run_dir / "metrics.jsonl") as file:
            size = os.fstat(file).st_size
            lines = os.pread(file, _MOST, max(0, size - _MOST)).split(b"\n")[:-1]  # the last line may be incomplete
    except OSError:
        return {}
    last: dict[str, float] = {}
    best: dict[str, float] = {}
    for row in parse_rows(lines if size <= _MOST else lines[1:]):
        for name, value in _numbers(row).items():
            last[name] = value
            if "loss" in name or name.startswith("val_"):
                better = min if "loss" in name else max
                best[name] = better(value, best.get(name, value))
    return {f"last {name}": value for name, value in last.items()} | {
        f"best {name}": value for name, value in best.items()
    }


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in row.items()
        if (name in _LAST or name.startswith("val_")) and type(value) in (int, float) and math.isfinite(value)
    }
