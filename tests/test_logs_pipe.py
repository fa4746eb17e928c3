"""What reaches a pipe is the same whether its blocks pass whole or are taken apart line by line."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.logs.lines import LineReader
from clusterrun.logs.pipe import PipeReader, pipe_line
from clusterrun.logs.wanted import Source, Want


def lines(stream, source, want):
    return LineReader(stream, world_size=source.world_size, ranks=source.ranks, match=want.match())


def slowly(data, stream, source, want):
    """The reference: each line taken apart, then put together."""
    reader = lines(stream, source, want)
    name = f"{source.name} ".encode() if source.name else b""
    return b"".join(name + pipe_line(line) + b"\n" for line in [*reader.feed(data), *reader.end()])


def fast(data, stream, source, want, sizes=()):
    reader, chunks, at = PipeReader(stream, source, want, lines(stream, source, want)), [], 0
    for size in (*sizes, len(data)):
        chunks += reader.feed(data[at : at + size])
        at += size
    return b"".join([*chunks, *reader.end()])


PATTERNS = [
    "loss|7", r"^\s*$", "ö", "(?i)LOSS", "loss 0.5", "3", ": ", r"\bstep\b", r"\Bte", "x{3,}", r"[l-s]+ \d", "[^x]*y",
    r"s\s+7", "a*", r"\d\S*$", "e++p", "(?:lo|st)(ss|ep)", "(?<=s)s", "–", r"\x1b", "(?s)s.", "Error", r"(lo)ss.*\1",
]  # fmt: skip
COMPLAINTS = [
    b"Traceback (most recent call last):\n", b"  File x\n", b"ValueError: y\n", b"[rank3]: ", b"[rank3]:   at z\n",
    b"ERROR", b"error 0.5\n", b"srun: error: z\n", b"During handling of the above exception", b"Xi", b"d 31\n", b"0",
]  # fmt: skip
PART = st.sampled_from([
    b" 3: ", b"3: ", b"15: ", b"16: ", b" 0: ", b"03: ", b"\n", b"\n", b"\n", b"\r", b"\t", b"\x1b[31m", b"\0", b"\x7f",
    b"loss 0.5", b"step 7", b"50%|x", b"9%", "größer".encode(), "█▌–".encode(), b"\xe2\x80\x8b", b"\xc2\x85", b"\xff",
    b"\xe2\x96", b"x" * 1020, b"y" * 1024, b"y" * 1024 + b"\n", b"z" * 5000, b" " * 9, b": ",
])  # fmt: skip
HOSTILE = st.lists(PART, max_size=40).map(b"".join) | st.binary(max_size=200)
FAILING = st.lists(PART | st.sampled_from(COMPLAINTS), max_size=40).map(b"".join)
SOURCE = st.builds(
    Source,
    out=st.none(),
    name=st.sampled_from(["", "123_4"]),
    world_size=st.sampled_from([None, 1, 10, 16, 4000]),
    ranks=st.sampled_from([None, frozenset({3}), frozenset({0, 3, 15}), frozenset(range(40)), frozenset()]),
)
WANT = st.builds(Want, grep=st.sampled_from([None, None, *map(re.compile, PATTERNS)]))
ERRORS = st.builds(Want, grep=st.sampled_from([None, None, re.compile("r")]), errors=st.just(True))
SIZES = st.lists(st.integers(1, 3000))


@given(data=HOSTILE, source=SOURCE, want=WANT, stream=st.sampled_from(["out", "err"]), sizes=SIZES)
def test_fast_is_slow_for_any_bytes_in_any_blocks(data, source, want, stream, sizes):
    assert fast(data, stream, source, want, sizes) == slowly(data, stream, source, want)


@given(data=FAILING, source=SOURCE, want=ERRORS, stream=st.sampled_from(["out", "err"]), sizes=SIZES)
def test_blocks_without_an_error_are_left_out_at_once(monkeypatch_module, data, source, want, stream, sizes):
    assert fast(data, stream, source, want, sizes) == slowly(data, stream, source, want)


@given(data=HOSTILE, source=SOURCE, want=WANT, stream=st.sampled_from(["out", "err"]), sizes=SIZES)
def test_fast_is_slow_in_small_parts(monkeypatch_module, data, source, want, stream, sizes):
    assert fast(data, stream, source, want, sizes) == slowly(data, stream, source, want)


@given(data=HOSTILE, sizes=st.lists(st.integers(1, 200)))
def test_fast_is_slow_where_lines_are_cut(monkeypatch_module, data, sizes):
    assert fast(data, "out", Source(Path(), world_size=16), Want(), sizes) == slowly(
        data, "out", Source(Path(), world_size=16), Want()
    )


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        for module in ("clusterrun.logs.lines", "clusterrun.logs.pipe"):
            patch.setattr(f"{module}.LINE_CAP", 1500)
        patch.setattr("clusterrun.logs.pipe._SMALL", 64)
        patch.setattr("clusterrun.logs.grep._LOOKED_AT", 2)
        patch.setattr("clusterrun.logs.grep._DENSE", 10)
        patch.setattr("clusterrun.logs.complaints._SHAPES_KEPT", 3)
        yield
