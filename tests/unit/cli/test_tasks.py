"""`tasks`, and the settings of a task in the help of `submit`."""

from __future__ import annotations

import json

from clusterrun.base.settings import INTERNAL, TASKS, rows
from tests.support.command_desk import Desk


def test_the_tasks_and_the_settings_of_one(desk: Desk) -> None:
    assert [line.split("\t")[0] for line in desk.type("tasks").out.splitlines()] == ["TASK", *TASKS]
    said = desk.type("tasks", "sft").out
    for row in rows(TASKS["sft"]):
        assert (f"  {row.name}" in said) == (row.section != INTERNAL), row.name
    assert "  warmup=10 steps " in said and "  sample_prompts=What does textwrap.dedent do?" in said


def test_settings_as_json_have_default_unit_and_meaning(desk: Desk) -> None:
    data = json.loads(desk.type("tasks", "diffusion", "--json").out)["data"]
    (steps,) = [row for row in data["settings"] if row["name"] == "steps"]
    assert (steps["default"], steps["unit"], steps["least"]) == (1000, "steps", 0) and steps["text"]
    assert [row["task"] for row in json.loads(desk.type("tasks", "--json").out)["data"]] == [*TASKS]


def test_a_misspelt_task_is_one_line_with_the_nearest(desk: Desk) -> None:
    said = desk.type("tasks", "stf")
    assert (said.status, said.err) == (2, "clusterrun: no task 'stf'\n  hint: did you mean sft?\n")


def test_the_help_of_submit_shows_the_settings_of_the_task_that_is_typed(desk: Desk) -> None:
    assert "Settings of sft (--set KEY=VALUE):" in desk.type("submit", "sft", "--help").out
    assert "packing=true" in desk.type("submit", "--nodes", "2", "sft", "-h").out
    assert "Settings of" not in desk.type("submit", "--help").out


def test_every_task_calls_its_data_data() -> None:
    for kind in TASKS.values():
        names = {row.name for row in rows(kind)}
        assert {"data", "val_data", "held_out"} <= names and not {"dataset", "train_data"} & names
