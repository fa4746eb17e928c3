"""Which jobs a list shows, in which order, and an array as one row for each state."""

from __future__ import annotations

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.base.job import JobId, JobStatus, Outcome, outcome_of
from clusterrun.state.filters import JobFilter, arrange, choose, parse_since, parse_states
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import handle


def job(id: str, state: str = "RUNNING", at: int = 100, **more: object) -> RunState:
    values = {"name": f"job{id}", "submitted": at, "outcome": outcome_of(state), **more}
    return RunState(None, JobStatus(id=JobId.parse(id), state=state, **values))  # type: ignore[arg-type]


def names(states: list[RunState]) -> list[str]:
    return [handle(state) for state in states]


def test_oldest_first_and_stable() -> None:
    rows = [job("30", at=3), job("11", at=1), job("9", at=2), job("10", at=2)]
    assert names(arrange(rows)) == names(arrange(rows[::-1])) == ["11", "9", "10", "30"]


def test_an_array_has_a_row_for_each_state() -> None:
    rows = [job(f"7_{task}", "RUNNING", elapsed=task, nodes="n1", node_count=1) for task in (0, 1, 2, 9)]
    rows += [job("7", "PENDING", tasks="10-19%4", reason="JobArrayTaskLimit"), job("7_3", "COMPLETED"), job("8")]
    found = arrange(rows)
    assert names(found) == ["7_[0-2,9]", "7_3", "7_[10-19%4]", "8"]
    running = found[0].status
    assert (running.tasks, running.elapsed, running.nodes, running.node_count) == ("0-2,9", 9, "n1", 4)


def test_a_long_list_of_tasks_is_counted() -> None:
    rows = [job(f"7_{task}") for task in range(0, 34, 2)]
    assert names(arrange(rows)) == ["7_[17 tasks]"]


def test_what_tasks_do_not_share_is_left_out() -> None:
    merged = arrange([job("7_1", nodes="n1", reason="A"), job("7_2", nodes="n2", reason="B")])[0].status
    assert (merged.nodes, merged.reason) == ("", "")


def test_expanded_every_task_has_a_row() -> None:
    found = arrange([job("7", "PENDING", tasks="2-4%1"), job("7_1")], expand=True)
    assert names(found) == ["7_1", "7_2", "7_3", "7_4"]


def test_a_list_that_was_cut_off_stands_as_it_is() -> None:
    rows = [job("7", "PENDING", tasks="1,2,..."), job("7_9", "PENDING")]
    assert set(names(arrange(rows))) == {"7_[1,2,...]", "7_9"}
    assert names(arrange(rows[:1], expand=True)) == ["7_[1,2,...]"]


def test_filters() -> None:
    rows = [
        job("1", "PENDING", name="sweep-a"), job("2", "RUNNING", name="train", at=5), job("3", "COMPLETED"),
        job("4", "UNKNOWN", outcome=Outcome.LOST),
    ]  # fmt: skip

    def chosen(**wanted: object) -> list[str]:
        return names(choose(rows, JobFilter(**wanted)))  # type: ignore[arg-type]

    assert chosen() == ["1", "2", "3", "4"]
    assert chosen(name="sweep-*") == ["1"] and chosen(since=50) == ["1", "3", "4"]
    assert chosen(states=parse_states("pd,R")) == ["1", "2"] and chosen(states=parse_states("lost")) == ["4"]
    assert chosen(states=parse_states("CD")) == ["3"]
    assert chosen(states=parse_states("PROWLING")) == []


@pytest.mark.parametrize(("typed", "history"), [("CD", True), ("R,lost", True), ("PD,R", False)])
def test_a_state_that_means_an_end_asks_for_those_that_are_over(typed: str, history: bool) -> None:
    assert JobFilter(states=parse_states(typed)).history is history
    assert JobFilter(everything=True).history and not JobFilter().history


@pytest.mark.parametrize(("typed", "meant"), [("CANCELED", "CANCELLED"), ("pendng", "PENDING"), ("R,FAIL", "FAILED")])
def test_a_mistyped_state_is_refused_with_the_one_that_was_meant(typed: str, meant: str) -> None:
    with pytest.raises(RequestError) as told:
        parse_states(typed)
    assert told.value.hint == f"did you mean {meant}?"


def test_ages() -> None:
    assert [parse_since(text, 10_000_000.9) for text in ("30s", "2m", "1h", "2d", "1w")] == [
        9_999_970, 9_999_880, 9_996_400, 9_827_200, 9_395_200,
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "2", "d", "-1d", "1y", "2 d", "1d;x", "٣d", "9999999d"])
def test_what_is_no_age(text: str) -> None:
    with pytest.raises(RequestError, match="--since"):
        parse_since(text, 0)


@pytest.mark.parametrize("text", ["", ",", "PENDING,", "a b", "x;y", "\x1b[31m"])
def test_what_is_no_state(text: str) -> None:
    with pytest.raises(RequestError, match="--state"):
        parse_states(text)
