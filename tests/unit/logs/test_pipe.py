"""What reaches a pipe is the same whether its blocks pass whole or are taken apart line by line."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clusterrun.logs.files import Source
from clusterrun.logs.lines import LineReader
from clusterrun.logs.request import LineFilter, LogRequest
from clusterrun.logs.show import Printer, pipe_line
from clusterrun.terminal.safe_text import safe_text

MINE = frozenset({os.getuid()})


class EachLine(LineReader):
    """Takes every line apart, and filters one by one."""

    def _read_block(self, block):
        for raw in block[:-1].split(b"\n"):
            if self._ranks is None or self.labels.split(raw)[0] in self._ranks:
                yield from self._add(raw)


def slowly(data, stream, source, want):
    """The reference: each line taken apart, then put together."""
    filters = want.filters(source.world_size)
    reader = EachLine(stream, world_size=source.world_size, ranks=source.ranks, filters=filters)
    name = f"{source.name} ".encode() if source.name else b""
    lines = [name + pipe_line(line) for line in [*reader.feed(data), *reader.end()]]
    if source.owners != MINE:
        lines = [safe_text(line.decode("utf-8", "replace")).encode() for line in lines]
    return b"".join(line + b"\n" for line in lines)


def fast(data, stream, source, want, sizes=()):
    reader, chunks, at = Printer(source, LogRequest(want)).reader(stream), [], 0
    for size in (*sizes, len(data)):
        chunks += reader.feed(data[at : at + size])
        at += size
    return b"".join([*chunks, *reader.end()])


PATTERNS = [
    "loss|7", r"^\s*$", "ö", "(?i)LOSS", "loss 0.5", "3", ": ", r"\bstep\b", r"\Bte", "x{3,}", r"[l-s]+ \d", "[^x]*y",
    r"s\s+7", "a*", r"\d\S*$", "e++p", "(?:lo|st)(ss|ep)", "(?<=s)s", "–", r"\x1b", "(?s)s.", "Error", r"(lo)ss.*\1",
]  # fmt: skip
PART = st.sampled_from([
    b" 3: ", b"3: ", b"15: ", b"16: ", b" 0: ", b"03: ", b"\n", b"\n", b"\n", b"\r", b"\t", b"\x1b[31m", b"\0", b"\x7f",
    b"loss 0.5", b"step 7", b"50%|x", b"9%", "größer".encode(), "█▌–".encode(), b"\xe2\x80\x8b", b"\xc2\x85", b"\xff",
    b"\xe2\x96", b"x" * 1020, b"y" * 1024, b"y" * 1024 + b"\n", b"z" * 5000, b" " * 9, b": ",
])  # fmt: skip
HOSTILE = st.lists(PART, max_size=40).map(b"".join) | st.binary(max_size=200)
SAID = st.sampled_from([
    *[b"Traceback (most recent call last):", b"  File x", b"all is well"] * 3, b"loss 0.5", b"step 7", b"xx", b"",
    b"ValueError: y", b"[rank3]: ", b"[rank3]:   at z", b"ERROR", b"error 0.5", b"srun: error: z", b"Xid 31", b"\xff",
    b"During handling of the above exception", "größer –".encode(), b"\xe2\x80\x8b", b"\x1b[31m", b"\r", b"50%|", b"9%",
    b"y" * 900,
])  # fmt: skip
LABEL = st.sampled_from([b" 3: ", b" 3: ", b" 3: ", b"15: ", b" 0: ", b"", b"16: ", b"3: "])
END = st.sampled_from([*[b"\n"] * 9, b"\r\n", b""])
TEXT = st.lists(SAID, max_size=2).map(b"".join)
LINE = st.tuples(LABEL, TEXT | TEXT | TEXT | st.just(b"y" * 1024), END).map(b"".join)
LOG = st.lists(LINE, min_size=5, max_size=40).map(b"".join)
SOURCE = st.builds(
    Source,
    out=st.none(),
    name=st.sampled_from(["", "123_4"]),
    owners=st.sampled_from([MINE, MINE, MINE | {54321}]),
    world_size=st.sampled_from([None, 1, 10, 16, 4000]),
    ranks=st.sampled_from([None, frozenset({3}), frozenset({0, 3, 15}), frozenset(range(40)), frozenset()]),
)
WANT = st.builds(LineFilter, grep=st.sampled_from([None, None, *map(re.compile, PATTERNS)]))
ERRORS = st.builds(LineFilter, grep=st.sampled_from([None, None, re.compile("r")]), errors=st.just(True))
EXCLUDE = st.builds(
    LineFilter,
    grep=st.sampled_from([None, re.compile("s")]),
    errors=st.booleans(),
    exclude=st.sampled_from([*map(re.compile, PATTERNS)]),
)
STREAM = st.sampled_from(["out", "err"])
SIZES = st.lists(st.integers(1, 3000)) | st.lists(st.integers(1, 200))


@given(data=HOSTILE | LOG, source=SOURCE, want=WANT | ERRORS | EXCLUDE, stream=STREAM, sizes=SIZES)
def test_fast_is_slow_for_any_bytes_in_any_blocks(data, source, want, stream, sizes):
    assert fast(data, stream, source, want, sizes) == slowly(data, stream, source, want)


@given(data=LOG, want=st.just(LineFilter()) | WANT | ERRORS, stream=STREAM, sizes=SIZES)
@settings(max_examples=5 * settings().max_examples)
def test_fast_is_slow_for_what_logs_say(monkeypatch_module, data, want, stream, sizes):
    source = Source(Path(), world_size=16, owners=MINE)
    assert fast(data, stream, source, want, sizes) == slowly(data, stream, source, want)


@given(data=LOG | HOSTILE, source=SOURCE, want=ERRORS, stream=STREAM, sizes=SIZES)
def test_fast_is_slow_where_errors_are_looked_for(monkeypatch_module, data, source, want, stream, sizes):
    assert fast(data, stream, source, want, sizes) == slowly(data, stream, source, want)


def test_fast_is_slow_where_most_lines_are_errors():
    data = b" 3: ValueError: x\n 3: at y\n" * 20
    source, want = Source(Path(), world_size=16, owners=MINE), LineFilter(errors=True)
    assert fast(data, "out", source, want) == slowly(data, "out", source, want) == b" 3: ValueError: x\n" * 20


@given(data=HOSTILE, sizes=st.lists(st.integers(1, 200)))
def test_fast_is_slow_where_lines_are_cut(monkeypatch_module, data, sizes):
    assert fast(data, "out", Source(Path(), world_size=16, owners=MINE), LineFilter(), sizes) == slowly(
        data, "out", Source(Path(), world_size=16, owners=MINE), LineFilter()
    )


STATE = st.sampled_from([
    b"\r 5%|#", b"\r50%|####", b"\r100%|########", b"\r1/9", b"\r16: ", b"\rnext", b"\r  ", b"  ", b"x", b"\r",
    b"7 words", b"\r\x1b[2K", b"\x1b[1A", b"3/9" + 5 * b"\b", b"\r 3% 3/9 [00:00<00:01, 9it/s]",
])  # fmt: skip
DRAWN = st.lists(st.lists(STATE, max_size=6).map(b"".join), max_size=6).map(b"\n".join)


@settings(max_examples=5 * settings().max_examples)
@given(data=DRAWN, world_size=st.sampled_from([None, 16]), sizes=st.lists(st.integers(1, 40)))
@example(data=b"16: \rTraceback\n", world_size=16, sizes=[12])  # "16" is a count, and was printed
@example(data=b"\r 50%|##\n\r 60%|##\rTraceback\n", world_size=16, sizes=[21])
@example(data=b"\r50%|####\r   \nword\r   \r   \r50%|####", world_size=16, sizes=[27])  # the last block has no return
@example(data=b"\r100\n\rload 48%\rlo\r\x1b[2K\n", world_size=16, sizes=[20])  # an empty line
@example(data=b"\r99%|####\n\r\x1b[2K\r\x1b[2K\r99%|####", world_size=16, sizes=[22])
@example(data=b"\r50%\n\r" + b" " * 11 + b"99%|##\r 5%|##\n", world_size=16, sizes=[18])  # the first state was cut
def test_fast_is_slow_for_bars_without_labels(data, world_size, sizes):
    source = Source(Path(), world_size=world_size, owners=MINE)
    assert fast(data, "err", source, LineFilter(), sizes) == slowly(data, "err", source, LineFilter())


PAYLOAD = st.sampled_from([
    b"", b"abcdefgh", b"abcdefgh", b"abcdefgh", b"abc", "öäü€ß".encode()[:8], "öäü€ß".encode()[8:], b"\x1b[31mabc",
    b"\xff", b"\r 5/9|##", b"\r 6/9|#", b"ab\r 7/9|", b"  \r 7/9 ", b"0123456789abcdef" * 4,
])  # fmt: skip
LINE = st.builds(b"".join, st.tuples(st.sampled_from([b" 0: ", b" 3: ", b"15: ", b"", b"16: "]), PAYLOAD))


@settings(max_examples=4 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    written=st.lists(LINE, max_size=60).map(b"\n".join),
    stream=st.sampled_from(["out", "err"]),
    ranks=st.sampled_from([None, None, frozenset({3, 15})]),
    sizes=st.lists(st.integers(1, 300)),
)
def test_pieces_of_many_ranks_are_joined_the_same(small_bounds, written, stream, ranks, sizes):
    source = Source(Path(), world_size=16, ranks=ranks, owners=MINE)
    assert fast(written, stream, source, LineFilter(), sizes) == slowly(written, stream, source, LineFilter())


@pytest.fixture
def small_bounds():
    """Pieces of eight bytes, so that short texts come to every bound."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in {"PIECE": 8, "LINE_CAP": 40, "HELD_CAP": 30}.items():
            patch.setattr(f"clusterrun.logs.lines.{name}", size)
        yield


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clusterrun.logs.lines.LINE_CAP", 1500)
        patch.setattr("clusterrun.logs.complaints._SHAPES_KEPT", 5)
        yield
