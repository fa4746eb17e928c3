"""What a file or an answer may hold that nobody wrote so: generated from a right one, or from nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

#: JSON texts that may stand in the place of any value.
VALUES = (
    "null", "true", "false", "0", "-1", "1", "3.5", "-0.0", "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "1e308",
    "9223372036854775808", "253402300800", "-62135596801", "4294967295.5", "1" + "0" * 400, "9" * 5000, '""', '"x"',
    '"5"', '"-1"', '"L1"', '"1_2"', '"0"', '"a/b"', '"../../../etc"', '"/etc/passwd"', '"\\u0000"', '"a\\u0000b"',
    '"\\ud800"', '"\\udcff"', '"\\u001b[31mred\\u001b[0m"', '"a\\nb"', '"' + "é" * 300 + '"', '"' + "x" * 100_000 + '"',
    '"²"', '"٣"', '"--help"', '"%s {0} {}"', '"2026-01-01"', '"RUNNING"', '"COMPLETED"', '"inf"', '"nan"', '"1e999"',
    "[]", "{}", "[1]", "[null]", '{"a": 1}', "[[]]", '["", "", ""]', "[null, null, null]", '["x", null, null]',
    '["x", 1e999, 2]', "[1, 2, 3, 4]", '[["a", 1]]', '{"": {}}', '{"state": 5, "figures": [1]}',
    "[" * 70 + "]" * 70, "[" * 1000 + "]" * 1000, '{"a":' * 1000 + "1" + "}" * 1000,
    "[" + ",".join(["{}"] * 1000) + "]",
)  # fmt: skip
#: Bytes that are no record at all.
WHOLE = (
    b"", b"\n", b"{", b"null", b"[]", b"5", b'"x"', b"true", b"NaN", b"{}", b"{}" * 3, b"\xff\xfe\x00", b"\x00" * 4096,
    b"[" * 200_000, b'{"a":' * 100_000, b'{"a":' * 1_000 + b"1" + b"}" * 1_000, b"\xef\xbb\xbf{}", b"9" * 5000,
    b'{"at": ' + b"9" * 5000 + b"}", '{"a": "é"}'.encode("utf-16"), b'{"a": "\xed\xa0\x80"}', b"x" * 300_000,
    b"{" + b'"k": 1, ' * 20_000 + b'"k": 2}', b"1 2 3 4 5\n" * 1000, b"\n" * 5_000, b"a=b " * 10_000,
)  # fmt: skip
#: Words that may stand in the place of any word of a text.
WORDS = (
    "", " ", "0", "-1", "1", "9" * 5000, "1e999", "nan", "inf", "-inf", "1e308", "99999999999999999999", "²", "٣", "\0",
    "a\0b", "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "backslashreplace"), "\udcff", "\x1b[31m", "\x1f",
    "x" * 100_000, "[", "]", "[0-", "node[1-", "node[1-99999999999]", "node[[1-2]]", "n[1-9]n[1-9]n[1-9]n[1-9]n[1-9]",
    "1_[0-999999999]", "1_[0-9%]", "1_[0-99999999:0]", "5+9", "/a\0b", "/", "..", "=", "a=b=c", "JobState=CANCELLED",
    "N/A", "(null)", "UNLIMITED", "INVALID", "Unknown", "None", "365-00:00:00", "99999999999-99:99:99", "gpu:-1",
    "gpu::", "gpu:a:9999999999999999999(S:0", "cpu=1e400", "mem=99999999999999999999T", "billing=", "a|b|c|d|e",
    "CANCELLED by x", "CANCELLED by 99999999999999", "0:99999999999", "é" * 200, "\u2028", "{", "}", "%", "'", '"',
    "\\",
)  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in a JSON document, the document itself last."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*at, key))
    yield at


def with_values(document: Any, changes: Sequence[tuple[tuple[Any, ...], str]]) -> bytes:
    """A JSON document with other texts in some places; a key may stand there twice."""
    marked, texts = deepcopy(document), dict[str, str]()
    for number, (place, text) in enumerate(changes):
        mark = f"@{number}@"
        target = marked
        try:
            for key in place[:-1]:
                target = target[key]
            if text == "DELETE":
                del target[place[-1]]
                continue
            texts[f'"{mark}"'] = text
            if text.startswith("TWICE") and isinstance(target, dict):
                texts[f'"{mark}"'] = f"1, {json.dumps(place[-1])}: {text.removeprefix('TWICE')}"
            target[place[-1]] = mark
        except (KeyError, IndexError, TypeError):  # an earlier change took it away
            continue
    found = json.dumps(marked)
    for mark, text in texts.items():
        found = found.replace(mark, text.removeprefix("TWICE"))
    return found.encode("utf-8", "surrogateescape")


def cut_or_torn(data: bytes) -> st.SearchStrategy[bytes]:
    """A file that was cut, written over in its middle, or written twice."""
    at = st.integers(0, len(data))
    return st.one_of(
        at.map(lambda end: data[:end]),
        st.tuples(at, at, st.binary(max_size=8)).map(lambda cut: data[: min(cut[:2])] + cut[2] + data[max(cut[:2]) :]),
        at.map(lambda end: data + data[:end]),
    )


def documents(document: Any) -> st.SearchStrategy[bytes]:
    """JSON files that begin as this document; one in five is no JSON, or none of it."""
    where = st.sampled_from([place for place in places(document) if place])
    what = st.sampled_from([*VALUES, *(f"TWICE{text}" for text in VALUES[:12]), "DELETE"])
    changed = st.lists(st.tuples(where, what), min_size=1, max_size=3).map(lambda made: with_values(document, made))
    return mostly(changed, st.sampled_from(WHOLE), cut_or_torn(json.dumps(document).encode()))


@st.composite
def mostly(draw: st.DrawFn, usual: st.SearchStrategy[bytes], *rare: st.SearchStrategy[bytes]) -> bytes:
    """Examples of the first strategy, and one in ten of each other."""
    which = draw(st.integers(0, 9))
    return draw(rare[which] if which < len(rare) else usual)


_WORD = re.compile(r"[^\s=|,:()\x1f\[\]]+")


def texts(text: str) -> st.SearchStrategy[bytes]:
    """Texts that begin as this one, with other words, lines in another order, or torn."""
    words = [match.span() for match in _WORD.finditer(text)] or [(0, 0)]

    def replaced(changes: Sequence[tuple[tuple[int, int], str]]) -> str:
        found = text
        for (start, end), word in sorted(changes, reverse=True):
            found = found[:start] + word + found[end:]
        return found

    changed = st.lists(
        st.tuples(st.sampled_from(words), st.sampled_from(WORDS)), min_size=1, max_size=4, unique_by=lambda one: one[0]
    ).map(replaced)
    lines = st.permutations(text.split("\n")[:12]).map("\n".join)
    data = text.encode("utf-8", "surrogateescape")
    moved, made = (one.map(lambda made: made.encode("utf-8", "surrogateescape")) for one in (lines, changed))
    return mostly(made, st.sampled_from(WHOLE), cut_or_torn(data), moved)
