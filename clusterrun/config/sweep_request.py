"""What a job file requests in its table ``[sweep]``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from clusterrun.base.errors import nearest
from clusterrun.config.toml_lines import Document
from clusterrun.config.toml_values import is_number_or_text, resolve

_KEYS = ("grid", "zip", "file", "max-running")
Axes = Mapping[str, "str | tuple[str, ...]"]
"""The values of each parameter, or a text such as ``0..4`` that gives them."""


class SweepRequest(NamedTuple):
    """The table's values; ``file`` is an absolute path or empty, ``max_running`` None if it is not set."""

    source: str = ""
    grid: Axes = MappingProxyType({})
    together: Axes = MappingProxyType({})
    file: str = ""
    max_running: int | None = None


def read_sweep(document: Document, home: Path | None) -> SweepRequest:
    """Return the table of a job file. Raises ConfigError with the line."""
    table = document.data.get("sweep", {})
    if not isinstance(table, dict):
        raise document.error(["sweep"], "sweep must be a table", hint='write [sweep.grid] with lr = ["1e-4"] below it')
    for key in table:
        if key.replace("_", "-") not in _KEYS:
            hint = nearest(key, _KEYS) or f"available keys: {', '.join(_KEYS)}"
            raise document.error(["sweep", key], f"unknown key {key!r} in [sweep]", hint=hint)
    file, limit = _read_file(document, table), _read_limit(document, table)
    path = resolve(file, document.base, home) if file else ""
    grid, together = (_axes(document, table, key) for key in ("grid", "zip"))
    return SweepRequest(f"{document.source} [sweep]", grid, together, path, limit)


def _read_file(document: Document, table: Mapping[str, Any]) -> str:
    file = table.get("file", "")
    if not isinstance(file, str) or "\0" in file:
        raise document.error(["sweep", "file"], "the file key must be a string", hint='example: file = "params.csv"')
    return file


def _read_limit(document: Document, table: Mapping[str, Any]) -> int | None:
    key = "max-running" if "max-running" in table else "max_running"
    limit = table.get(key)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise document.error(["sweep", key], f"{key} must be a whole number above 0", hint=f"write {key} = 8")
    return limit


def _axes(document: Document, table: Mapping[str, Any], key: str) -> Axes:
    named_values = table.get(key, {})
    if not isinstance(named_values, dict):
        raise document.error(["sweep", key], f"{key} must be a table", hint=f"write [sweep.{key}] with NAME = [VALUES]")
    axes: dict[str, str | tuple[str, ...]] = {}
    for name, values in named_values.items():
        if isinstance(values, str):
            axes[name] = values
            continue
        items = values if isinstance(values, list) else [values]
        if not items or not all(map(is_number_or_text, items)):
            hint = f'write {name} = [1e-4, 3e-4] or {name} = "0..4"'
            raise document.error(["sweep", key, name], f"{name} must be a list of numbers or strings", hint=hint)
        axes[name] = tuple(map(_text, items))
    return axes


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
