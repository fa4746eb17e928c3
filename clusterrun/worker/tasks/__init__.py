"""The shipped tasks: a module each, with its `Config` of base/settings.py, `check(config, world_size)` and `run(…)`."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ...base.errors import WorkerError, suggestion
from ...base.settings import EPOCHS, TASKS, rows

NAMES = tuple(TASKS)


def prepare(name: str, arguments: Sequence[str], world_size: int) -> Callable[..., None]:
    """Check the configuration, set the umask, and return the task as a function of (dist, run, device).

    Raises WorkerError as `load` does.
    """
    module, config = load(name, arguments, world_size)
    # checkpoints, caches and models are trusted when read again: nobody else may write them, whatever the umask was
    os.umask(os.umask(0o077) | 0o022)
    return functools.partial(module.run, config)


def load(name: str, arguments: Sequence[str], world_size: int) -> tuple[Any, Any]:
    """Return a task's module and its checked configuration; imports no torch.

    Raises WorkerError (status 2) for an unknown task or key, or an impossible value.
    """
    if name not in NAMES:
        raise WorkerError(f"unknown task {name!r}{suggestion(name, NAMES)}; known: {', '.join(NAMES)}", status=2)
    module = importlib.import_module(f"{__name__}.{name}")
    config = configure(module.Config, arguments)
    module.check(config, world_size)
    return module, config


def configure(kind: type, arguments: Sequence[str]) -> Any:
    """Return a task's configuration from `KEY=VALUE` arguments; a value is JSON if it parses, else text."""
    fields = {f.name: f for f in dataclasses.fields(kind)}
    by_epochs = {row.name for row in rows(kind) if row.epochs}
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise WorkerError(f"expected KEY=VALUE, got {argument!r}", status=2)
        if key not in fields:
            raise WorkerError(f"unknown key {key!r}{suggestion(key, fields)}; known: {', '.join(fields)}", status=2)
        values[key] = (_fit_every if key in by_epochs else _fit)(key, text, fields[key].default)
    return kind(**values)


def _fit(key: str, text: str, default: Any) -> Any:
    """Parse a value as the type of the key's default; a tuple is one text or a list of texts."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise WorkerError(f"{key} must be true or false, got {text!r}", status=2)
        return value
    if isinstance(default, int | float):
        return _fit_number(key, text, value, type(default))
    if isinstance(value, list):
        if not all(isinstance(part, str) for part in value):
            raise WorkerError(f"{key} must be a string or a list of strings, got {text!r}", status=2)
        return tuple(value)
    return (text,) if isinstance(default, tuple) else text  # a folder called 2024 stays text


def _fit_every(key: str, text: str, default: Any) -> Any:
    """Parse a number of steps, or of epochs, which stays text."""
    if EPOCHS.fullmatch(text):
        return text
    try:
        return _fit(key, text, default)
    except WorkerError as error:
        raise WorkerError(f"{error}; for epochs write {key}=1ep", status=2) from None


def _fit_number(key: str, text: str, value: Any, kind: type[int | float]) -> int | float:
    whole, largest = ("whole ", 2**63 - 1) if kind is int else ("", sys.float_info.max)
    if type(value) not in (int, float):
        raise WorkerError(f"{key} must be a {whole}number, got {text!r}", status=2)
    if abs(value) > largest or (whole and math.isnan(value)):
        raise WorkerError(f"{key}={text:.40} is out of range", status=2)
    if whole and value != int(value):
        raise WorkerError(f"{key} must be a whole number, got {text!r}", status=2)
    return kind(value)
