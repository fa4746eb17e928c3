"""TOML tables to values: known keys, right types, paths made absolute; errors name file, line and what was expected."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterrun.config.toml_lines import Document, nearest
from clusterrun.errors import ConfigError
from clusterrun.jobspec.fields import FIELD, Field, Value


def read_values(
    document: Document, path: Sequence[str], table: Mapping[str, Any], source: str,
    *, base: Path, home: Path | None, own: Sequence[str] = (),
) -> dict[str, Value]:  # fmt: skip
    """The values of a table's known keys, dashes or underscores; ``own`` are keys that the caller reads itself.

    ``path`` leads to the table within the document. Relative paths are taken from ``base``, the file's project.
    Types are checked here, ranges and forbidden characters by ``spec.build_spec``.
    """
    if unknown := unknown_key(document, path, table, own=own):
        raise unknown
    values: dict[str, Value] = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name in own:
            continue
        if name in values:
            raise document.error([*path, key], f"{name} is there twice, with - and with _", hint="keep one of them")
        _check_type(document, [*path, key], FIELD[name], value)
        if name == "template" or (name == "python" and "/" in value):  # a bare python3 is looked up on PATH
            values[name] = Value(resolve(value, base, home), source)
        else:
            values[name] = Value(value, source)
    return values


def unknown_key(
    document: Document, path: Sequence[str], table: Mapping[str, Any], *, own: Sequence[str] = ()
) -> ConfigError | None:
    """The error about the first key that means nothing here, with the nearest that does; None where all are known."""
    for key in table:
        if key.replace("_", "-") not in FIELD and key.replace("_", "-") not in own:
            hint = nearest(key, [*FIELD, *own]) or "`clusterrun submit --help` lists the names, as flags"
            return document.error([*path, key], f"unknown key {key!r}", hint=hint)
    return None


def text_at(document: Document, path: Sequence[str]) -> str:
    """The text at a path that is known to be there; raises ConfigError for anything but some text."""
    value: Any = document.data
    for key in path:
        value = value[key]
    if not isinstance(value, str) or not value or "\0" in value:
        raise document.error(path, f"{path[-1]} must be a text, not {_said(value)}", hint=_quoted(path[-1], value))
    return value


def resolve(text: str, base: Path, home: Path | None) -> str:
    """An absolute path: ``~/`` is the home folder (TOML has no shell to say so), anything relative is from ``base``."""
    if text.startswith("~/") and home is not None:
        return str(home / text[2:])
    return str(base / text)


def _check_type(document: Document, path: Sequence[str], field: Field, value: Any) -> None:
    key = path[-1]
    if field.kind == "map":
        _check_map(document, path, field, value)
        return
    wanted, good, example = {
        "int": ("a whole number", type(value) is int, _unquoted(key, value)),
        "text": ("a text", isinstance(value, str), _quoted(key, value)),
        "flag": ("true or false", isinstance(value, bool), _unquoted(key, value)),
        "list": (
            "a list of texts",
            isinstance(value, list) and all(isinstance(v, str) for v in value),
            f'write {key} = ["…"]',
        ),
    }[field.kind]
    if not good:
        raise document.error(path, f"{key} must be {wanted}, not {_said(value)}", hint=example)


def _check_map(document: Document, path: Sequence[str], field: Field, value: Any) -> None:
    key = path[-1]
    if not isinstance(value, dict):
        raise document.error(
            path, f"{key} must be a table, not {_said(value)}", hint=f"write [{key}] with NAME = VALUE lines below it"
        )
    for name, item in value.items():
        where = [*path, name]
        if field.name == "env":
            # below [env], every line up to the next header belongs to it: a setting that landed there would be lost
            if name.replace("_", "-") in FIELD and name == name.lower():
                raise document.error(
                    where, f"{name} stands below [{'.'.join(path)}], so it would become a variable of the job",
                    hint="move it above the first [table] of the file",
                )  # fmt: skip
            if not isinstance(item, str):
                raise document.error(where, f"env: {name} must be a text, not {_said(item)}", hint=_quoted(name, item))
        elif not _is_setting(item):
            raise document.error(
                where, f"{key}: {name} must be a text, a number, true or false, or a list of texts, not {_said(item)}",
                hint='a setting has one plain value, or texts: ["a.csv", "b.csv"]',
            )  # fmt: skip


def _is_setting(item: Any) -> bool:
    if isinstance(item, list):
        return all(isinstance(text, str) for text in item)
    return isinstance(item, str | int) or (isinstance(item, float) and math.isfinite(item))


def _said(value: Any) -> str:
    """What stands there, in the words of TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, datetime.date | datetime.time):
        return f"the {'time' if isinstance(value, datetime.time) else 'date'} {value}"
    return f"the text {value[:40]!r}" if isinstance(value, str) else f"the number {str(value)[:40]}"


def _quoted(key: str, value: Any) -> str:
    if isinstance(value, dict | list | bool) or value == "":
        return f'write {key} = "…"'
    return f'write {key} = "{str(value)[:40]}"'


def _unquoted(key: str, value: Any) -> str:
    text = value.strip().lower() if isinstance(value, str) else ""
    return f"write {key} = {text}" if text.isdecimal() or text in ("true", "false") else ""
