"""Lines out of bytes: labels, pieces, progress bars, and lines that have no end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.logs.labels import LogLine
from clusterrun.logs.lines import HELD_CAP, LINE_CAP, LineReader
from tests.support.log_texts import pieces


def read(data, *, world_size=None, sizes=()):
    """The (rank, text) pairs of some bytes, fed in blocks of these sizes and then the rest."""
    reader, lines, at = LineReader("out", world_size=world_size), [], 0
    for size in (*sizes, len(data)):
        lines += reader.feed(data[at : at + size])
        at += size
    return [(line.rank, line.text) for line in [*lines, *reader.end()]]


LINE = st.one_of(
    st.text(st.characters(exclude_characters="\n\r"), max_size=40).map(lambda s: s.encode("utf-8", "replace")),
    # around the length of a piece, and characters of several bytes so that it falls inside one
    st.builds(
        lambda c, n: (c * n).encode()[:n],
        st.sampled_from("aä€😀"),
        st.sampled_from([1022, 1023, 1024, 1025, 2048, 3000]),
    ),
)


@given(
    ranks=st.lists(st.lists(LINE, max_size=4), min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 3000), max_size=20),
    random=st.randoms(use_true_random=False),
    known=st.booleans(),
)
def test_each_rank_gets_its_lines_back_however_srun_and_the_disk_cut_them(ranks, sizes, random, known):
    world_size = len(ranks)
    queues = [[p for line in lines for p in pieces(rank, line, world_size)] for rank, lines in enumerate(ranks)]
    stream = b""
    while any(queues):
        stream += random.choice([queue for queue in queues if queue]).pop(0)
    got = read(stream, world_size=world_size if known else None, sizes=sizes)
    for rank, lines in enumerate(ranks):
        assert [text for r, text in got if r == rank] == [line.decode("utf-8", "replace") for line in lines]


@given(
    data=st.binary(max_size=300) | st.text("01: \r\nx\x00\x1bä", max_size=300).map(str.encode),
    cuts=st.lists(st.integers(1, 9), max_size=60),
)
def test_hostile_bytes_read_the_same_in_any_blocks(data, cuts):
    assert read(data, sizes=cuts) == read(data)


@given(st.binary(max_size=2000))
def test_no_line_holds_a_newline_or_a_carriage_return(data):
    assert not any(set(text) & {"\n", "\r"} for _rank, text in read(data))


def test_a_line_of_exactly_one_piece_does_not_swallow_the_next():
    exact = b"0: " + b"x" * 1024 + b"\n0: \n"  # as seen on Slurm 22.05
    assert read(exact + b"0: next\n") == [(0, "x" * 1024), (0, "next")]


def test_a_piece_without_its_rest_comes_at_the_end():
    assert read(b"0: " + b"x" * 1024 + b"\n1: y\n") == [(1, "y"), (0, "x" * 1024)]


def test_lines_without_a_label_are_nobody_s():
    assert read(b"clusterrun: attempt 1\nsrun: error: node1: task 3: Killed\n") == [
        (None, "clusterrun: attempt 1"),
        (None, "srun: error: node1: task 3: Killed"),
    ]


@pytest.mark.parametrize(
    "line", ["16: too large", "3: too narrow", "03: zero", "003: too wide", "-1: x", "٣٣: x", ": x", "1 : x"]
)
def test_what_srun_would_not_write_for_16_ranks_is_text(line):
    assert read(f"{line}\n".encode(), world_size=16) == [(None, line)]


def test_labels_are_as_wide_as_the_largest_rank():
    assert read(b" 3: a\n15: b\n", world_size=16) == [(3, "a"), (15, "b")]


def test_without_a_world_size_any_number_is_a_label():
    assert read(b"  3: a\n15: b\n") == [(3, "a"), (15, "b")]


def test_only_one_label_comes_off():
    assert read(b"0: 1: text\n0:   indented\n") == [(0, "1: text"), (0, "  indented")]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\r 10%\r 20%\r100%\n", "100%"),
        (b"\r 10%\r100%\r      \r\n", "100%"),  # a bar that wipes itself
        (b"windows\r\n", "windows"),
        (b"\r\r\r\n", ""),
        (b"old\rnew", "new"),
    ],
)
def test_of_a_progress_bar_the_last_state_that_shows_anything_is_kept(raw, text):
    assert read(b"0: " + raw) == [(0, text)]


def test_a_progress_bar_in_pieces_keeps_its_last_state():
    bar = b"".join(b"\r step %6d" % i for i in range(5000))
    assert read(b"".join(pieces(0, bar, 1))) == [(0, " step   4999")]


def test_a_long_line_is_cut_and_says_by_how_much():
    reader = LineReader("out")
    for _ in range(64):
        reader.feed(b"y" * LINE_CAP)
    (line,) = reader.feed(b"end\n")
    assert (line.text, line.cut) == ("y" * LINE_CAP, 63 * LINE_CAP + 3)


def test_a_long_line_in_pieces_is_cut_too():
    (line,) = LineReader("out", world_size=4).feed(b"".join(pieces(2, b"z" * 1_000_000, 4)))
    assert (line.rank, len(line.text), line.cut) == (2, LINE_CAP, 1_000_000 - LINE_CAP)


def test_the_line_after_a_cut_one_is_whole():
    reader = LineReader("out")
    reader.feed(b"0: " + b"y" * 3 * LINE_CAP)
    cut, after = reader.feed(b"\n1: after\n")
    assert (cut.rank, cut.cut, after) == (0, 2 * LINE_CAP, LogLine("out", 1, b"after", label=b"1"))


def test_a_progress_bar_outlives_the_cut():
    reader = LineReader("out")
    reader.feed(b"0: " + b"y" * 2 * LINE_CAP)
    reader.feed(b"\r 50%\r")
    assert reader.feed(b"99%\n") == []
    (line,) = reader.end()
    assert (line.rank, line.text, line.cut) == (0, "99%", 0)


def test_a_cut_is_still_told_after_the_blanks_before_it_are_gone():
    reader = LineReader("out")
    reader.feed(b"x" + b" " * LINE_CAP + b"lost" * 10)
    reader.feed(b"\r" + b" " * 20)
    (line,) = reader.feed(b"\n")
    assert (line.text, line.cut > 0) == ("x", True)


def test_unfinished_lines_of_very_many_ranks_stay_in_bounds():
    reader = LineReader("out")
    fed = 0
    lines = []
    for rank in range(2 * HELD_CAP // 1024):
        lines += reader.feed(b"%d: " % rank + b"x" * 1024 + b"\n")
        fed += 1
    assert len(lines) == fed - HELD_CAP // 1024
    assert len(lines) + len(reader.end()) == fed
