"""Decode what files and programs say: JSON, and its objects into the fields of a record. No I/O.

The bytes may be damaged, or another user's who chose each of them. Whatever they are, a decoder here returns plain
values or raises ``Damaged``, and takes time in proportion to their number. A value that it returns can be used without
care: numbers are finite and below 2^63 (others become None, "not known"), texts contain no NUL and can be encoded as
file names, and nothing is nested more than ``DEEPEST`` levels deep.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cache
from itertools import chain
from typing import Any, TypeVar, cast

Record = TypeVar("Record")
DEEPEST = 64
"""The maximum depth of lists and objects: records have at most six levels, and a user's setting may be nested."""
_LARGEST = 2**63
_MOST = 253_402_300_799  # the last second of the year 9999, and above every count in a record
#: What no file name may contain: a NUL, and halves of a pair that stand for no byte.
_NO_TEXT = re.compile("[\0\ud800-\udbff\udc00-\udc7f\udd00-\udfff]")


class Damaged(ValueError):
    """What was read is not what it should be; the message says why in a few words."""


# -- JSON ------------------------------------------------------------------------------------------------------------


def parse_json(data: bytes | str) -> Any:
    """Return the value of a JSON text in UTF-8. Raises Damaged."""
    return _clean(*_parse(data, _CAREFUL))


def parse_object(data: bytes | str) -> dict[str, Any]:
    """Return the object of a JSON text in UTF-8. Raises Damaged, also for another value."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise Damaged("not a JSON object")
    return value


def parse_lines(lines: Iterable[bytes | str]) -> Iterator[Any]:
    """Yield the value of each line; a line that is no JSON, or was written only in part, is left out."""
    for line in lines:
        with suppress(Damaged):
            if line:
                yield parse_json(line)


def parse_rows(lines: Iterable[bytes | str]) -> list[dict[str, Any]]:
    """Return the JSON objects in lines; other lines are left out."""
    return [row for row in parse_lines(lines) if isinstance(row, dict)]


def parse_unchecked(data: bytes | str) -> Any:
    """Return the value of a JSON text with any number in it, for many records that go through ``parse_fields``.

    Raises Damaged.
    """
    value, text = _parse(data, _QUICK)
    return value if _is_plain(text) else _clean(value, text)


def _parse(data: bytes | str, decoder: json.JSONDecoder) -> tuple[Any, str]:
    try:
        text = data if isinstance(data, str) else data.decode()
        return decoder.decode(text), text
    except UnicodeDecodeError:
        raise Damaged("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise Damaged(f"not JSON: {error.msg} (line {error.lineno})") from None
    except RecursionError:
        raise Damaged("nested too deeply") from None
    except ValueError:  # int() refuses thousands of digits
        raise Damaged("a number is too long") from None


def _clean(value: Any, text: str) -> Any:
    if text.count("[") + text.count("{") > DEEPEST and not _is_shallow(value):
        raise Damaged("nested too deeply")
    return value if _is_plain(text) else _with_plain_texts(value)


def _is_plain(text: str) -> bool:
    return text.isascii() and "\\u" not in text


def _with_plain_texts(value: Any) -> Any:
    if isinstance(value, str):
        return _NO_TEXT.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_with_plain_texts(key): _with_plain_texts(item) for key, item in value.items()}
    return [*map(_with_plain_texts, value)] if isinstance(value, list) else value


def _is_shallow(value: Any) -> bool:
    """Return whether a value has at most ``DEEPEST`` levels, without recursion."""
    level = [value]
    for _ in range(DEEPEST):
        items = chain.from_iterable(map(_items, level))
        level = [item for item in items if type(item) in (dict, list)]
        if not level:
            return True
    return False


def _items(outer: Any) -> Iterable[Any]:
    return outer.values() if type(outer) is dict else outer


def _whole(text: str) -> int | None:
    return int(text) if len(text) < 20 and -_LARGEST < int(text) < _LARGEST else None


def _fraction(text: str) -> float | None:
    value = float(text)
    return value if -_LARGEST < value < _LARGEST else None


_CAREFUL = json.JSONDecoder(parse_int=_whole, parse_float=_fraction, parse_constant=lambda name: None)
_QUICK = json.JSONDecoder(parse_constant=lambda name: None)


# -- the fields of a record ------------------------------------------------------------------------------------------


def build(kind: type[Record], data: Mapping[str, Any], *, lenient: Collection[str] = (), **known: Any) -> Record:
    """Return a dataclass from a JSON object, and from what is ``known`` otherwise. Raises Damaged.

    A value must have the type of its field, and there must be one if the field has no default; a ``lenient`` field
    has its default instead. A record of a newer version may have more keys, which are ignored, and so are fields of
    other types than those of ``_CHECKS``.
    """
    values = known | _read_fields(kind, data, [*known], lenient)
    if missing := [name for name in _required(cast("Any", kind)) if name not in values]:
        raise Damaged(f"{', '.join(missing)} missing")
    return kind(**values)


@cache
def _required(kind: type) -> list[str]:
    return [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]


def _read_fields(
    kind: Any, data: Mapping[str, Any], known: Collection[str], lenient: Collection[str]
) -> dict[str, Any]:
    values = {}
    for name, check in _checks(kind):
        if name not in data or name in known:
            continue
        try:
            values[name] = check(data[name])
        except Damaged:
            if name not in lenient:
                raise Damaged(f"{name} is invalid") from None
    return values


@cache
def _checks(kind: type) -> list[tuple[str, Callable[[Any], Any]]]:
    return [(field.name, _CHECKS[str(field.type)]) for field in fields(kind) if str(field.type) in _CHECKS]


def _of_type(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise Damaged
        return value

    return check


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise Damaged
    return value


def _number(value: Any) -> float:
    if (number := as_number(value)) is None:
        raise Damaged
    return number


def _or_none(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _tuple_of(*checks: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(checks):
            raise Damaged
        return tuple(check_item(item) for check_item, item in zip(checks, value, strict=True))

    return check


def _list_of(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check_all(value: Any) -> Any:
        if not isinstance(value, list):
            raise Damaged
        return tuple(map(check, value))

    return check_all


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _size(value: Any) -> int:
    """Return a number of bytes, -1 if it is not known."""
    if type(value) is not int or not -1 <= value <= _MOST:
        raise Damaged
    return value


_text, _flag, _object = _of_type(str), _of_type(bool), _of_type(dict)
#: The checks of fields, by their annotation; each returns the value, or raises Damaged.
_CHECKS: dict[str, Callable[[Any], Any]] = {
    "str": _text,
    "int": _count,
    "bool": _flag,
    "float": _number,
    "int | None": _or_none(_count),
    "bool | None": _or_none(_flag),
    "float | None": _or_none(_number),
    "tuple[str, int, int]": _tuple_of(_text, _count, _count),
    "tuple[int, int]": _tuple_of(_size, _size),
    "tuple[str, ...]": _list_of(_text),
    "tuple[tuple[str, str], ...]": _list_of(_tuple_of(_text, _text)),
    "tuple[tuple[str, Any], ...]": _list_of(_tuple_of(_text, _frozen)),
    "Mapping[str, Any]": _object,
    "Mapping[str, Any] | None": _or_none(_object),
}


def parse_fields(kind: type, data: Mapping[str, Any], only: frozenset[str] | None = None) -> dict[str, Any]:
    """Return the numbers and texts of a named tuple from a JSON object that may be damaged; ``only`` these fields.

    A missing value, or one of another type, becomes None or an empty text.
    """
    values: dict[str, Any] = {}
    value: Any  # not narrowed by the comparison of types
    for name, expected in _types(kind, only):  # without calls: a large run has 80,000 records
        value = data.get(name)
        its_type = type(value)
        if its_type is not expected:
            value = float(value) if expected is float and its_type is int and abs(value) < _LARGEST else None
        if expected is str:
            value = value or ""
        elif value is not None and not -_LARGEST < value < _LARGEST:
            value = None
        values[name] = value
    return values


@cache
def _types(kind: type, only: frozenset[str] | None) -> list[tuple[str, type]]:
    kinds = {name: hint.__forward_arg__.removesuffix(" | None") for name, hint in kind.__annotations__.items()}
    return [(name, _TYPES[kind]) for name, kind in kinds.items() if kind in _TYPES and (not only or name in only)]


_TYPES: dict[str, type] = {"str": str, "int": int, "float": float}


def as_int(value: object) -> int | None:
    """Return a number as an int; None if it is not a number, or is too large to print."""
    number = as_number(value)
    return None if number is None else int(number)


def as_text(value: object) -> str:
    """Return a text, or an empty one for anything else."""
    return value if isinstance(value, str) else ""


def as_texts(value: object) -> list[str]:
    """Return the texts in a list; none for anything else."""
    return _items_of_type(str, value)


def as_objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; none for anything else."""
    return _items_of_type(dict, value)


def _items_of_type(kind: type, value: object) -> list[Any]:
    return [item for item in value if isinstance(item, kind)] if isinstance(value, list) else []


def as_number(value: Any) -> int | float | None:
    """Return a number; None for anything else, and for a number too large to print."""
    return value if type(value) in (int, float) and -_LARGEST < value < _LARGEST else None
