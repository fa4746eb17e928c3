"""Job files that `init NAME` writes, and the name of a job that comes from a file."""

from __future__ import annotations

import os
import re

import pytest

from clusterrun.base.settings import TASKS
from clusterrun.config.new_job import SCRIPT, job_text
from clusterrun.config.profiles import load_job
from tests.support.command_desk import Desk


@pytest.mark.parametrize("origin", [SCRIPT, *TASKS])
def test_a_new_job_file_works_as_it_is_and_with_each_suggestion(desk: Desk, origin: str) -> None:
    said = desk.type("init", "mine", "--from", origin)
    path = desk.project / "jobs" / "mine.toml"
    check, run = "clusterrun submit mine --dry-run", "clusterrun submit mine"
    assert (said.status, said.out) == (0, f"Wrote {path}. Fill it in, check it with `{check}`, then run `{run}`.\n")
    text = path.read_text()
    assert f"submit {origin}`" not in text and "copy it" not in text
    assert load_job("mine", desk.project).kind == ("script" if origin == SCRIPT else "task")
    for line in re.findall(r"^#(?=\S)(.+)", text, re.MULTILINE):
        key = line.partition(" =")[0]
        path.write_text(re.sub(rf"^{re.escape(key)} = .*\n", "", text, flags=re.MULTILINE) + f"\n{line}\n")
        assert load_job("mine", desk.project), line
        path.unlink()


def test_a_file_that_exists_is_kept(desk: Desk) -> None:
    path = desk.write("jobs/mine.toml", "mine")
    said = desk.type("init", "mine")
    assert said.status == 2 and "mine.toml already exists" in said.err and path.read_text() == "mine"
    assert desk.type("init", "mine", "--print").out == job_text("mine", SCRIPT) and path.read_text() == "mine"
    assert desk.type("init", "mine", "--force").status == 0 and "script =" in path.read_text()


def test_a_link_in_place_of_a_job_file_is_not_followed(desk: Desk) -> None:
    aim = desk.write("aim", "kept")
    (desk.project / "jobs").mkdir()
    (desk.project / "jobs" / "mine.toml").symlink_to(aim)
    assert desk.type("init", "mine").status == desk.type("init", "mine", "--force").status == 2
    assert aim.read_text() == "kept"


def test_a_pipe_in_place_of_a_job_file_is_not_waited_for(desk: Desk) -> None:
    (desk.project / "jobs").mkdir()
    os.mkfifo(desk.project / "jobs" / "mine.toml")
    assert desk.type("init", "mine", "--force").status == 2


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "last", "123", "a b", "x" * 41, ""])
def test_a_name_that_names_no_job_file_is_refused(desk: Desk, name: str) -> None:
    said = desk.type("init", name)
    assert said.status == 2 and "cannot be the name of a job file" in said.err
    assert not (desk.project / "jobs").exists()


def test_from_needs_a_name(desk: Desk) -> None:
    said = desk.type("init", "--from", "sft")
    assert said.status == 2 and "--from needs the NAME" in said.err


@pytest.mark.parametrize(("words", "name"), [
    (["pretrain"], "pretrain"), (["jobs/pretrain.toml"], "pretrain"), (["pretrain", "-J", "mine"], "mine"),
    (["named"], "own"), (["smollm2"], "smollm2"), (["--", "train.py"], "train"), ([], "lm"),
])  # fmt: skip
def test_a_job_has_the_name_of_its_file(desk: Desk, words: list[str], name: str) -> None:
    desk.write("jobs/pretrain.toml", 'script = "train.py"\n')
    desk.write("jobs/named.toml", 'script = "train.py"\njob-name = "own"\n')
    assert f'#SBATCH --job-name="{name}.' in desk.type("render", *words).out
