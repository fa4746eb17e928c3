"""`top` as a command: where there is no terminal, as JSON, and what it imports."""

from __future__ import annotations

import pytest

from clusterrun.cli.top import theme_of
from tests.process.test_startup import imported
from tests.support.command_desk import Desk


def test_without_a_terminal_it_says_so_in_one_line(desk: Desk) -> None:
    said = desk.type("top")
    assert said.status == 2 and said.out == ""
    assert "top needs a terminal" in said.err and "clusterrun list" in said.err


def test_json_needs_no_terminal(desk: Desk) -> None:
    assert desk.type("top", "--json").data == []


def test_a_job_that_nobody_knows_is_told_before_the_screen_opens(desk: Desk) -> None:
    desk.slurm.answer("squeue", err="slurm_load_jobs error: Invalid job id specified\n", status=1)
    said = desk.type("top", "--json", "999")
    assert said.status == 4


def test_another_users_job_is_not_among_mine(desk: Desk) -> None:
    row = ["77", "77", "RUNNING", "None", "somebody", "gpu", "node1", "1", "0:10", "1:00:00", "1800000000", "", "",
           "/tmp/x.sh", "theirs"]  # fmt: skip
    desk.slurm.answer("squeue", "\x1f".join(row) + "\n")
    said = desk.type("top", "--json", "77")
    assert said.status == 4 and "belongs to somebody" in said.out


def test_a_slurm_that_does_not_answer_is_not_taken_for_no_jobs(desk: Desk) -> None:
    desk.slurm.answer("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", status=1)
    said = desk.type("top", "--json")
    assert said.status == 3 and "Unable to contact slurm controller" in said.out


@pytest.mark.parametrize("words", [["list"], ["top"], ["top", "--json"], ["--help"], ["top", "--help"]])
def test_textual_is_loaded_for_the_screen_only(desk: Desk, words: list[str]) -> None:
    assert not imported(*words) & {"textual", "torch", "submitit", "jinja2", "rich"}


@pytest.mark.parametrize(
    ("told", "theme"),
    [({}, "dark"), ({"COLORFGBG": "15;0"}, "dark"), ({"COLORFGBG": "0;15"}, "light"),
     ({"COLORFGBG": "0;default;7"}, "light"), ({"COLORFGBG": "strange"}, "dark")],
)  # fmt: skip
def test_the_theme_is_that_of_the_terminal_where_it_tells(told: dict[str, str], theme: str) -> None:
    assert theme_of(told) == theme
