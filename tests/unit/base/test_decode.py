"""Decoders of what others wrote: plain values or one error, whatever the bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base import decode
from clusterrun.base.decode import DEEPEST, Damaged, build, parse_fields, parse_json, parse_object, parse_rows

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.from_regex(r"\\u[dD][0-9a-f]{3}"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


def members(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [one for pair in value.items() for part in pair for one in members(part)]
    return [one for item in value for one in members(item)] if isinstance(value, list) else [value]


@given(plain)
def test_a_value_that_is_read_can_be_used_without_care(value: Any) -> None:
    for one in members(parse_json(json.dumps(value))):
        if isinstance(one, str):
            assert b"\0" not in os.fsencode(one)
        elif isinstance(one, int | float):
            assert abs(one) < 2**63


@given(st.binary())
def test_bytes_of_any_kind_are_a_value_or_one_error(data: bytes) -> None:
    for decoder in (parse_json, parse_object, decode.parse_unchecked):
        try:
            decoder(data)
        except Damaged as error:
            assert 0 < len(str(error)) < 100


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[NaN, -Infinity, 1e999, 12345678901234567890, 1]", [None, None, None, None, 1]),
        (r'"a\u0000b\ud800c\\u0000\udcff"', "a\ufffdb\ufffdc\\u0000\udcff"),
        (r'{"\ud800": ["\u0000"]}', {"\ufffd": ["\ufffd"]}),
        (r'"\ud83d\ude42é"', "🙂é"),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ("9223372036854775807", 2**63 - 1),
        ("[" * DEEPEST + "]" * DEEPEST, None),
    ],
)  # fmt: skip
def test_what_is_not_usable_becomes_none_or_a_replacement(text: str, value: Any) -> None:
    assert value is None or parse_json(text) == value
    assert parse_json(text.encode()) == parse_json(text)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON: Expecting value (line 1)"),
        (b'{"a": 1', "not JSON: Expecting ',' delimiter (line 1)"),
        (b"\xff", "not UTF-8 text"),
        (b"[]", "not a JSON object"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * DEEPEST + b"[]" + b"}" * DEEPEST, "nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_few_words(data: bytes, why: str) -> None:
    with pytest.raises(Damaged) as caught:
        parse_object(data)
    assert str(caught.value) == why


def test_only_the_objects_among_lines_are_rows() -> None:
    assert parse_rows([b'{"a": 1}', b"[1]", b'{"a":', b"\xff", "{}"]) == [{"a": 1}, {}]


@dataclass(frozen=True)
class Record:
    name: str
    count: int = 0
    when: float | None = None
    place: tuple[str, int, int] = ("", 0, 0)
    sizes: tuple[int, int] = (0, 0)
    more: Mapping[str, Any] | None = None
    words: tuple[str, ...] = ()
    flag: bool = False
    unknown: complex = 0


class Row(NamedTuple):
    step: int | None
    loss: float | None = None
    text: str = ""


def test_a_record_is_built_from_the_fields_it_knows() -> None:
    data = {"name": "a", "count": 3, "when": 2, "place": ["h", 1, 2], "sizes": [-1, 5], "more": {"x": 1},
            "words": ["b"], "flag": True, "newer": 1, "unknown": 7}  # fmt: skip
    assert build(Record, data) == Record("a", 3, 2, ("h", 1, 2), (-1, 5), {"x": 1}, ("b",), True)
    assert build(Record, {}, name="known") == Record("known")


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", None), ("name", 5), ("count", "1"), ("count", True), ("count", -1), ("count", 10**12), ("count", 1.0),
     ("when", "x"), ("when", float("inf")), ("flag", 1), ("place", ["x", None, None]), ("words", "x")],
)  # fmt: skip
def test_a_field_of_another_type_is_an_error(field: str, value: Any) -> None:
    with pytest.raises(Damaged, match=rf"^{field} is invalid$"):
        build(Record, {"name": "a", field: value})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(Damaged, match=r"^name missing$"):
        build(Record, {"count": 1})


@given(plain)
def test_a_lenient_field_of_another_shape_has_its_default(value: Any) -> None:
    for field in ("place", "sizes", "more", "words"):
        try:
            built = build(Record, {"name": "a", field: value}, lenient=["place", "sizes", "more", "words"])
        except Damaged as error:
            pytest.fail(str(error))
        found = getattr(built, field)
        assert found == getattr(Record("a"), field) or list(found) == list(value)


@given(st.dictionaries(st.sampled_from(["step", "loss", "text", "other"]), plain))
def test_a_row_has_numbers_and_texts_whatever_was_written(data: dict[str, Any]) -> None:
    row = Row(**parse_fields(Row, data))
    assert row.step is None or type(row.step) is int
    assert row.loss is None or abs(row.loss) < 2**63
    assert type(row.text) is str
