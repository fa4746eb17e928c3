"""An array's tasks, read and written as Slurm does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.job import JobId, JobStatus, Outcome, format_tasks, parse_tasks, split_tasks, task_count


def row(tasks: str) -> JobStatus:
    return JobStatus(id=JobId("7"), state="PENDING", outcome=Outcome.RUNNING, reason="Priority", tasks=tasks)


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("0-3%4", [0, 1, 2, 3]), ("5", [5]), ("0-9:3,12", [0, 3, 6, 9, 12]), ("1,3,5-6%1", [1, 3, 5, 6])],
)
def test_lists_of_slurm(text: str, tasks: list[int]) -> None:
    assert parse_tasks(text) == tasks
    assert [job.id.task for job in split_tasks(row(text))] == tasks and task_count(row(text)) == len(tasks)


@pytest.mark.parametrize("text", ["", "1,2,...", "1-", "0x1F", "a", "1-9:0", "0-999999999", "1%x", "٣", "1,,2"])
def test_a_list_that_cannot_be_read_stays_one_row(text: str) -> None:
    assert parse_tasks(text) is None
    assert split_tasks(row(text)) == [row(text)]


@given(st.sets(st.integers(0, 500), min_size=1))
def test_written_and_read_again(tasks: set[int]) -> None:
    assert parse_tasks(format_tasks(tasks)) == sorted(tasks)


@given(st.text(alphabet="0123456789-,:%.x[]", max_size=30))
def test_no_text_breaks_it(text: str) -> None:
    split_tasks(row(text))
