"""Convert TOML tables to values: known keys, correct types, absolute paths. Errors name the file and the line."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from clusterrun.base.errors import ConfigError, nearest
from clusterrun.base.fields import FIELD, Field
from clusterrun.config.toml_lines import Document
from clusterrun.jobspec.containers import is_file_name
from clusterrun.jobspec.fields import Value, is_list_of_texts

TABLES: Mapping[str, Mapping[str, str]] = {
    "restart": {
        name: name
        for name in (
            "max-restarts",
            "resume-args",
            "hang-timeout",
            "spare-nodes",
            "total-time",
            "on-failure",
            "helper-job",
            "requeue",
        )
    },
    "notify": {"target": "notify", "on": "notify-on"},
    "environment": {
        "modules": "modules",
        "conda": "conda",
        "venv": "venv",
        "python": "python",
        "uv": "venv",
        "stage": "stage-env",
    },
    "container": {key: f"container-{key}" for key in ("image", "mounts", "runtime", "python")},
}
"""Tables of options, and the option of each key; the options may also be at the top."""


def read_values(
    document: Document, path: Sequence[str], table: Mapping[str, Any], source: str, *, own: Sequence[str] = ()
) -> dict[str, Value]:
    """Return the values of a table's keys, written with dashes or underscores; ``own`` are keys for the caller.

    ``path`` is the table's path in the document. Types are checked here, the rest in ``spec.build_spec``.
    """
    if unknown := unknown_key(document, path, table, own=own):
        raise unknown
    values: dict[str, Value] = {}
    set_at: dict[str, Sequence[str]] = {}
    for where, name, value in _options(document, path, table, own):
        if name in values:
            raise _set_twice(document, name, set_at[name], where)
        values[name], set_at[name] = _read_option(document, where, name, value, source), where
    return values


Option = tuple[list[str], str, Any]
"""The path of an option's key in a document, the option's name, and its value as it was read."""


def _options(
    document: Document, path: Sequence[str], table: Mapping[str, Any], own: Sequence[str]
) -> Iterator[Option]:  # fmt: skip
    """Yield the options in a table and in those below it."""
    for key, value in table.items():
        name = key.replace("_", "-")
        if name in own:
            continue
        if name in TABLES and (name not in FIELD or isinstance(value, dict)):  # notify is an option, too
            yield from _options_of(document, [*path, key], TABLES[name], value)
        else:
            yield [*path, key], name, value


def _options_of(document: Document, path: Sequence[str], options: Mapping[str, str], table: Any) -> Iterator[Option]:
    """Yield the options in one of ``TABLES``."""
    if not isinstance(table, dict):
        hint = f"write [{'.'.join(path)}] with {next(iter(options))} = … below it"
        raise document.error(path, f"{path[-1]} must be a table, not {_typed(table)}", hint=hint)
    for key, value in table.items():
        name = options.get(key.replace("_", "-"))
        if name is None:
            hint = nearest(key, options) or f"available keys: {', '.join(options)}"
            raise document.error([*path, key], f"unknown key {key!r} in [{path[-1]}]", hint=hint)
        yield [*path, key], name, value


def _set_twice(document: Document, option: str, first: Sequence[str], second: Sequence[str]) -> ConfigError:
    """Return the error about an option that is set at two paths."""
    if len(first) == len(second):
        return document.error(second, f"{option} is set twice, once with - and once with _", hint="keep one of them")
    *table, _ = max(first, second, key=len)
    message = f"{option} is set twice, inside and outside [{table[-1]}]"
    return document.error(table, message, hint="keep one of them")


def _read_option(document: Document, path: Sequence[str], name: str, value: Any, source: str) -> Value:
    _check_type(document, path, FIELD[name], value)
    place = partial(document.place, path)
    # a bare python3 is looked up on PATH, a conda environment may have a name
    is_path = (name in ("python", "conda") and "/" in value) or (name == "container-image" and is_file_name(value))
    if is_path or name in ("template", "accelerate-config", "venv"):
        return Value(resolve(value, document.base, document.home), source, place)
    return Value(value, source, place)


def unknown_key(
    document: Document, path: Sequence[str], table: Mapping[str, Any], *, own: Sequence[str] = ()
) -> ConfigError | None:
    """Return the error about the first unknown key, with the nearest known one as the hint, or None."""
    for key in table:
        if key.replace("_", "-") not in (*FIELD, *TABLES, *own):
            hint = nearest(key, [*FIELD, *TABLES, *own]) or "see the flags in `clusterrun submit --help`"
            return document.error([*path, key], f"unknown key {key!r}", hint=hint)
    return None


def text_at(document: Document, path: Sequence[str]) -> str:
    """Return the string at an existing path. Raises ConfigError if it is empty or not a string."""
    value: Any = document.data
    for key in path:
        value = value[key]
    if not isinstance(value, str) or not value or "\0" in value:
        kind = "a non-empty string" if isinstance(value, str) else "a string"
        message = f"{path[-1]} must be {kind}, not {_typed(value)}"
        raise document.error(path, message, hint=_quoted(path[-1], value))
    return value


def resolve(text: str, base: Path, home: Path | None) -> str:
    """Return an absolute path: ``~/`` is the home folder, a relative path starts from ``base``."""
    if text.startswith("~/") and home is not None:
        return str(home / text[2:])
    return str(base / text)


def _check_type(document: Document, path: Sequence[str], field: Field, value: Any) -> None:
    key = path[-1]
    if field.kind == "map":
        _check_map(document, path, field, value)
        return
    expected, good, example = {
        "int": ("a whole number", type(value) is int, _unquoted(key, value)),
        "text": ("a string", isinstance(value, str), _quoted(key, value)),
        "flag": ("true or false", isinstance(value, bool), _unquoted(key, value)),
        "list": (
            "a list of strings",
            is_list_of_texts(value),
            f'write {key} = ["…"]',
        ),
    }[field.kind]
    if not good:
        raise document.error(path, f"{key} must be {expected}, not {_typed(value)}", hint=example)


def _check_map(document: Document, path: Sequence[str], field: Field, value: Any) -> None:
    key = path[-1]
    if not isinstance(value, dict):
        hint = f"write [{'.'.join(path)}] with NAME = VALUE lines below it"
        raise document.error(path, f"{key} must be a table, not {_typed(value)}", hint=hint)
    for name, item in value.items():
        if field.name == "env":
            _check_variable(document, [*path, name], item)
        elif not _is_setting(item):
            raise document.error(
                [*path, name],
                f"{key}: {name} must be a string, a number, true, false or a list of strings, not {_typed(item)}",
                hint='use a single value, or a list of strings: ["a.csv", "b.csv"]',
            )


def _check_variable(document: Document, path: Sequence[str], value: Any) -> None:
    """Raise ConfigError unless an item of [env] is a text, and is not an option that stands below [env] by mistake."""
    *table, name = path
    # below [env], all lines up to the next header belong to it: an option there would be lost
    if name.replace("_", "-") in FIELD and name == name.lower():
        above = table[:-1]
        raise document.error(
            path,
            f"{name} is an option, but in [{'.'.join(table)}] it would set an environment variable",
            hint=f"move it to [{'.'.join(above)}]" if above else "move it above the first [table] in the file",
        )
    if not isinstance(value, str):
        raise document.error(path, f"env: {name} must be a string, not {_typed(value)}", hint=_quoted(name, value))


def is_number_or_text(value: Any) -> bool:
    """Return whether a value is a string, true, false or a finite number."""
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _is_setting(item: Any) -> bool:
    return is_list_of_texts(item) or is_number_or_text(item)


def _typed(value: Any) -> str:
    """Return a value and its TOML type, for a message."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, datetime.date | datetime.time):
        return f"the {'time' if isinstance(value, datetime.time) else 'date'} {value}"
    return f"the string {value[:40]!r}" if isinstance(value, str) else f"the number {str(value)[:40]}"


def _quoted(key: str, value: Any) -> str:
    if isinstance(value, dict | list | bool) or value == "":
        return f'write {key} = "…"'
    return f'write {key} = "{str(value)[:40]}"'


def _unquoted(key: str, value: Any) -> str:
    text = value.strip().lower() if isinstance(value, str) else ""
    return f"write {key} = {text}" if text.isdecimal() or text in ("true", "false") else ""
