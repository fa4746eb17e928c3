"""The table ``[sweep]`` of a job file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.errors import nearest
from clusterrun.config.toml_lines import Document
from clusterrun.config.toml_values import resolve

_KEYS = ("grid", "zip", "file", "max-running")
Axes = tuple[tuple[str, "str | tuple[str, ...]"], ...]
"""Names with their values, or with a text such as ``0..4`` that gives them."""


class SweepTable(NamedTuple):
    """The table's values; ``file`` is an absolute path or empty, ``max_running`` None if it is not set."""

    source: str
    grid: Axes = ()
    together: Axes = ()
    file: str = ""
    max_running: int | None = None


def read_sweep(document: Document, home: Path | None) -> SweepTable | None:
    """Return the table of a job file, None without one. Raises ConfigError with the line."""
    table = document.data.get("sweep")
    if table is None:
        return None
    if not isinstance(table, dict):
        raise document.error(["sweep"], "sweep must be a table", hint='write [sweep.grid] with lr = ["1e-4"] below it')
    for key in table:
        if key.replace("_", "-") not in _KEYS:
            hint = nearest(key, _KEYS) or f"available keys: {', '.join(_KEYS)}"
            raise document.error(["sweep", key], f"unknown key {key!r} in [sweep]", hint=hint)
    file, limit = table.get("file", ""), table.get("max-running", table.get("max_running"))
    if not isinstance(file, str) or "\0" in file:
        raise document.error(["sweep", "file"], "the file key must be a string", hint='example: file = "params.csv"')
    if limit is not None and (type(limit) is not int or limit < 1):
        key = "max-running" if "max-running" in table else "max_running"
        raise document.error(["sweep", key], f"{key} must be a whole number above 0", hint=f"write {key} = 8")
    grid, together = (_axes(document, table, key) for key in ("grid", "zip"))
    path = resolve(file, document.base, home) if file else ""
    return SweepTable(f"{document.source} [sweep]", grid, together, path, limit)


def _axes(document: Document, table: Mapping[str, Any], key: str) -> Axes:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise document.error(["sweep", key], f"{key} must be a table", hint=f"write [sweep.{key}] with NAME = [VALUES]")
    axes: list[tuple[str, str | tuple[str, ...]]] = []
    for name, values in found.items():
        many = values if isinstance(values, list) else [values]
        if not many or not all(_is_value(one) for one in many):
            hint = f'write {name} = [1e-4, 3e-4] or {name} = "0..4"'
            raise document.error(["sweep", key, name], f"{name} must be a list of numbers or strings", hint=hint)
        axes.append((name, values if isinstance(values, str) else tuple(map(_text, many))))
    return tuple(axes)


def _is_value(one: Any) -> bool:
    return isinstance(one, str | int) or (isinstance(one, float) and math.isfinite(one))


def _text(one: Any) -> str:
    return str(one).lower() if isinstance(one, bool) else str(one)
