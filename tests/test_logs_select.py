"""What to look for in the logs: ranks and nodes become tasks, patterns are compiled or refused."""

import pytest

from clusterrun.errors import RequestError
from clusterrun.logs import compile_grep, node_ranks, select_tasks

START = {"ranks": [{"rank": r, "node": f"node{1 + r // 2}", "task": r} for r in range(4)]}
PER_NODE = {"ranks": [{"rank": r, "node": f"node{1 + r // 2}", "task": r // 2} for r in range(4)]}


def test_node_ranks_are_read_from_the_start_record():
    assert node_ranks(START) == {"node1": {0, 1}, "node2": {2, 3}}


@pytest.mark.parametrize(
    "start", [{}, {"ranks": None}, {"ranks": [1, {}, {"rank": "0", "node": "n"}, {"rank": 0, "node": 7}]}]
)
def test_a_broken_start_record_names_no_ranks(start):
    assert node_ranks(start) == {}


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
        (None, [], ["node1"], "have not come together yet"),
        (None, [-1], [], "no rank -1"),
        (START, [4], [], "no rank 4"),
        (START, [], ["node9"], "no node node9"),
        (START, [0], ["node2"], "rank 0 is not on node2"),
        (PER_NODE, [3], [], "cannot be told apart"),
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
