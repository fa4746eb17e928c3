"""What many ranks say at once is said once: nothing is lost, held for long, or put before what its rank said before."""

from hypothesis import given
from hypothesis import strategies as st

from clusterrun.logs import show as showing
from clusterrun.logs.labels import LogLine
from clusterrun.logs.show import HOLD, LineFolder


def line(rank, text, stream="out"):
    return LogLine(stream, rank, text.encode(), label=str(rank).encode())


def folded(lines, world=None, now=None):
    folder = LineFolder(world)
    return [(one.line.text, [*one.ranks]) for one in [*folder.add(lines, now), *folder.end()]]


def test_the_same_line_of_all_ranks_is_one():
    assert folded([line(rank, "hello") for rank in range(8)]) == [("hello", list(range(8)))]


def test_lines_that_take_turns_are_folded_each():
    lines = [line(rank, text) for text in ("a", "b", "c") for rank in range(4)]
    by_rank = sorted(lines, key=lambda one: one.rank)
    assert folded(lines) == folded(by_rank) == [(text, [0, 1, 2, 3]) for text in "abc"]


def test_a_rank_that_says_it_twice_is_shown_twice():
    assert folded([line(0, "x"), line(0, "x"), line(1, "x")]) == [("x", [0]), ("x", [0, 1])]


def test_out_and_err_are_not_the_same_line():
    assert folded([line(0, "x"), line(1, "x", "err")]) == [("x", [0]), ("x", [1])]


def test_a_line_that_all_ranks_have_said_waits_no_longer():
    folder = LineFolder(2)
    assert list(folder.add([line(0, "a")], 0.0)) == []
    assert [[*one.ranks] for one in folder.add([line(1, "a")], 0.0)] == [[0, 1]]


def test_a_line_waits_for_a_fraction_of_a_second():
    folder = LineFolder(8)
    list(folder.add([line(0, "a")], 10.0))
    assert list(folder.late(10.0 + HOLD / 2)) == []
    assert [one.line.text for one in folder.late(10.0 + HOLD)] == ["a"]


def test_a_line_far_behind_is_another_one_where_only_places_count():
    lines = [line(0, "a"), *(line(1, f"other {i}") for i in range(1000)), line(2, "a")]
    assert [ranks for text, ranks in folded(lines) if text == "a"] == [[0], [2]]


def test_nobody_s_line_comes_after_all_before_it():
    lines = [line(0, "a"), LogLine("out", None, b"srun: error"), line(1, "a")]
    assert [text for text, _ in folded(lines)] == ["a", "srun: error", "a"]


@given(
    said=st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abcd"), st.sampled_from(["out", "err"])), max_size=80),
    timed=st.booleans(),
)
def test_each_rank_s_lines_stay_in_order_and_none_is_lost(said, timed):
    folder = LineFolder(6)
    lines = [line(rank, text, stream) for rank, text, stream in said]
    shown = []
    for i, one in enumerate(lines):
        shown += folder.add([one], i * 0.01 if timed else None)
    shown += folder.end()
    for rank in range(6):
        mine = [(one.line.text, one.line.stream) for one in shown if rank in one.ranks]
        assert mine == [(text, stream) for r, text, stream in said if r == rank]
    assert sum(len(one.ranks) for one in shown) == len(said)


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(showing, "_WAITING", 10)
    folder = LineFolder(4)
    gone = list(folder.add((line(0, f"line {i}") for i in range(100)), 0.0))
    assert len(gone) == 90
