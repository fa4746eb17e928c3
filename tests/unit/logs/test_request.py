"""What to look for in the logs: ranks and nodes become tasks, patterns are compiled or refused."""

import contextlib
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import RequestError
from clusterrun.base.units import parse_since
from clusterrun.logs.request import compile_grep, filter_external, filter_run, parse_ranks, select_tasks

START = {"ranks": [{"rank": r, "node": f"node{1 + r // 2}", "task": r} for r in range(4)]}
PER_NODE = {"ranks": [{"rank": r, "node": f"node{1 + r // 2}", "task": r // 2} for r in range(4)]}


@pytest.mark.parametrize(
    ("ranks", "nodes", "tasks"),
    [
        ([1], [], {1}),
        ([1, 3], [], {1, 3}),
        ([], ["node2"], {2, 3}),
        ([3], ["node2"], {3}),
        ([], ["node1", "node2"], {0, 1, 2, 3}),
    ],
)
def test_ranks_and_nodes_become_tasks(ranks, nodes, tasks):
    assert select_tasks(START, ranks, nodes) == tasks


def test_before_the_ranks_have_come_a_rank_is_its_task():
    assert select_tasks(None, [3, 5], []) == {3, 5}


@pytest.mark.parametrize(
    ("start", "ranks", "nodes", "message"),
    [
        (None, [], ["node1"], "ranks have not started"),
        (START, [4], [], "no rank 4"),
        (START, [], ["node9"], "no node node9"),
        (START, [0], ["node2"], "rank 0 is not on node2"),
        (PER_NODE, [3], [], "only by node"),
    ],
)
def test_what_cannot_be_shown_is_refused(start, ranks, nodes, message):
    with pytest.raises(RequestError, match=message) as caught:
        select_tasks(start, ranks, nodes)
    assert caught.value.hint


def test_a_refusal_names_what_there_is():
    with pytest.raises(RequestError) as caught:
        select_tasks(START, [9], [])
    assert "0-3" in caught.value.hint


def test_a_node_with_one_label_for_all_its_ranks_can_be_asked_for():
    assert select_tasks(PER_NODE, [], ["node2"]) == {1}


@pytest.mark.parametrize(("pattern", "place"), [("a(b", "character 2"), ("[z-a]", "character 2"), ("*", "character 1")])
def test_a_bad_pattern_is_refused_with_its_place(pattern, place):
    with pytest.raises(RequestError, match=place):
        compile_grep(pattern)


def test_a_pattern_too_large_for_python_is_refused():
    with pytest.raises(RequestError):
        compile_grep("a{99999999999999999999}")


def test_a_good_pattern_is_compiled_without_a_warning(recwarn):
    assert compile_grep("[[a]").search("[")
    assert not recwarn.list


@pytest.mark.parametrize(
    ("texts", "ranks"),
    [([], set()), (["3"], {3}), (["0-3"], {0, 1, 2, 3}), (["0-1,8", "3"], {0, 1, 3, 8}), ([" 2 - 3 "], {2, 3})],
)
def test_ranks_are_numbers_and_ranges(texts, ranks):
    assert parse_ranks(texts) == ranks


@pytest.mark.parametrize("text", ["3-1", "", "a", "1,,2", "-1", "1-", "0-99999999", "²", "1.5"])
def test_what_is_no_rank_is_refused_with_a_hint(text):
    with pytest.raises(RequestError, match="--rank") as caught:
        parse_ranks([text])
    assert caught.value.hint


@given(st.text(max_size=20))
def test_any_text_for_ranks_is_read_or_refused(text):
    with contextlib.suppress(RequestError):
        parse_ranks([text])


NOW = datetime(2026, 11, 21, 12, 0, 0).timestamp()


@pytest.mark.parametrize(
    ("text", "before"),
    [("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86_400), ("11:00", 3600), ("11:59:30", 30), ("13:00", 82_800),
     ("2026-11-21T11:00", 3600), ("2026-11-20 12:00:00", 86_400)],
)  # fmt: skip
def test_since_is_a_while_ago_or_a_time(text, before):
    assert parse_since(text, NOW) == NOW - before


@pytest.mark.parametrize("text", ["banana", "", "10", "10x", "25:00", "m", "-5m", "2026-13-01"])
def test_what_is_no_time_is_refused_with_a_hint(text):
    with pytest.raises(RequestError, match="--since") as caught:
        parse_since(text, NOW)
    assert "10m" in caught.value.hint


@given(st.text(max_size=20))
def test_any_text_for_a_time_is_read_or_refused(text):
    with contextlib.suppress(RequestError):
        parse_since(text, NOW)


def log(folder, text, name="log"):
    path = folder / name
    path.write_text(text)
    return path


def test_without_a_wish_all_lines_are_chosen():
    assert filter_run(None, [], [], []) == filter_external([], [], []) == (None, None)


def test_of_our_own_job_the_label_is_the_task(tmp_path):
    assert filter_run(START, [1], [], []) == ({1}, None)
    assert filter_run(PER_NODE, [], ["node2"], []) == ({1}, None)


def test_ranks_of_another_tools_job_are_its_labels_where_lines_bear_any(tmp_path):
    assert filter_external([1, 3], [], [log(tmp_path, "starting\n0: a\n1: b\n")]) == ({1, 3}, None)


def test_ranks_are_not_guessed_where_no_line_tells_them(tmp_path):
    with pytest.raises(RequestError, match="rank 1: this log does not show which rank wrote each line") as caught:
        filter_external([1], [], [log(tmp_path, "hello\nworld: 1: x\n")])
    assert "--label" in caught.value.hint


def test_under_one_task_per_node_the_prefix_tells_the_rank(tmp_path):
    labels, prefix = filter_run(PER_NODE, [1, 3], [], [log(tmp_path, "0: [rank1]: a\n1: [rank3]: b\n")])
    assert labels is None and prefix is not None
    assert prefix.search("[rank3]: b") and not prefix.search("[rank13]: b")


def test_labels_tell_more_than_the_prefix_of_a_traceback(tmp_path):
    assert filter_external([1], [], [log(tmp_path, "1: fine\n1: [rank1]: Traceback\n")]) == ({1}, None)


def test_nodes_of_another_tools_job_are_not_known(tmp_path):
    with pytest.raises(RequestError, match="only for jobs submitted by clusterrun"):
        filter_external([], ["node1"], [log(tmp_path, "0: a\n")])
