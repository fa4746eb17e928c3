"""The line on which a key was set, in any TOML text."""

from __future__ import annotations

import time
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import ConfigError
from clusterrun.config.toml_lines import line_of, parse


@given(st.text())
def test_free_text_never_breaks_the_reader(text: str) -> None:
    try:
        parse("f.toml", text.encode("utf-8", "replace"))
    except ConfigError as error:
        assert error.message.startswith("f.toml")


@given(
    st.lists(
        st.sampled_from(["", "# nodes = 3", "a.nodes = 1", "b = '''", "nodes", "'''", "c = 'nodes'", "[t]"]), max_size=8
    )
)
def test_the_line_is_where_the_key_is_set(before: list[str]) -> None:
    text = "\n".join([*before, "nodes = 2", ""])
    try:
        data = tomllib.loads(text)
    except ValueError:
        return
    path = next((p for p in (["nodes"], ["t", "nodes"]) if _at(data, p) == 2), None)
    if path:
        assert line_of(text, path) == len(before) + 1


def _at(data: dict[str, object], path: list[str]) -> object:
    value: object = data
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("x = [\n 1,\n]\n", ["x"], 1),
        ("[set]\nsteps = 1\n[profile.a.set]\nsteps = 2", ["profile", "a", "set", "steps"], 4),
        ("[profile.a]", ["profile", "a"], 1),
        ("a = {b = 1}", ["a", "b"], 1),
        ("a = 1", ["b"], None),
        ('"\\u0061" = 1', ["a"], None),
        ("a = 1", [], None),
    ],
)
def test_line_of(text: str, path: list[str], line: int | None) -> None:
    assert line_of(text, path) == line


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"a." * 20_000 + b"b = 1\n", 1),
        (b'x = """\n\n"""\n[' + b'"a".' * 32 + b"b]\n", 4),
        (b"x = 1\ny = {" + b"a . " * 40 + b"b = 1}\n", 2),
    ],
)
def test_a_key_of_thousands_of_parts_is_refused_before_it_is_parsed(raw: bytes, line: int) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=rf"^x\.toml:{line}: a key has more than 32 parts$"):
        parse("x.toml", raw)
    assert time.monotonic() - began < 10


def test_dots_in_texts_numbers_and_comments_are_no_key() -> None:
    dots = "a." * 100
    text = f'# {dots}\nx = \'{dots}\'\ny = """\n{dots}\\\n{dots}"""\nz = [{"0.5, " * 100}]\n{"k." * 31}b = 1\n'
    assert len(parse("x.toml", text.encode()).data) == 4


def test_the_line_of_a_key_is_not_looked_for_forever() -> None:
    text = "".join(f"k{number} = 1\n" for number in range(18_000)) + "y = [\n" + "1,\n" * 499 + "]\n"
    began = time.thread_time()  # what the machine does beside it does not count
    assert line_of(text, ("y",)) is None
    assert time.thread_time() - began < 10
