"""What is suggested for a word that clusterrun does not know, and the letters and sections of its options."""

from __future__ import annotations

import re

import pytest

from clusterrun.base.fields import FIELDS, SECTIONS
from clusterrun.cli import VERBS
from clusterrun.cli.common.meanings import COMMANDS, OPTIONS, meant_command, meant_option, misplaced, with_separator
from tests.support.command_desk import Desk

LONG = [f"--{field.name}" for field in FIELDS]


@pytest.mark.parametrize(("typed", "hint"), [
    ("stop", "clusterrun cancel JOBID"), ("scancel", "clusterrun cancel JOBID"), ("ls", "clusterrun list"),
    ("squeue", "clusterrun list"), ("launch", "clusterrun submit"), ("sbatch", "clusterrun submit"),
    ("tail", "clusterrun logs JOBID -f"), ("help", "clusterrun --help"), ("train.py", "clusterrun submit -- train.py"),
    ("sumbit", "did you mean submit?"), ("lsit", "did you mean list?"), ("qwerty", ""), ("x", ""),
])  # fmt: skip
def test_a_command_of_another_tool_leads_to_the_one_that_does_it(typed: str, hint: str) -> None:
    assert meant_command(typed, VERBS) == hint


@pytest.mark.parametrize(("typed", "hint"), [
    ("--gpus", "did you mean --gpus-per-node?"), ("--output", OPTIONS["--output"]), ("--node", "did you mean --nodes?"),
    ("--partiton", "did you mean --partition?"), ("--lr", ""), ("-Z", ""), ("--whatever", ""),
    ("--tail", "use --lines"),
])  # fmt: skip
def test_an_option_of_another_tool_leads_to_ours_and_a_short_one_to_nothing(typed: str, hint: str) -> None:
    assert meant_option(typed, LONG, ["submit", typed]) == hint


def test_a_letter_means_what_the_command_makes_of_it() -> None:
    assert meant_option("-o", LONG, ["list", "-o", "%i"]) == "use --columns jobid,name,state, or --json"
    assert meant_option("-o", LONG, ["submit", "-o", "x"]) == OPTIONS["--output"]


def test_a_parameter_that_is_typed_as_an_option_of_sweep_leads_to_its_grid() -> None:
    words = ["sweep", "--lr", "0.1,0.2", "--", "train.py"]
    assert meant_option("--lr", LONG, words) == "parameters are given with --grid: --grid lr=0.1,0.2"
    assert meant_option("--lr", LONG, ["sweep", "--lr", "0.1"]) == ""
    words = ["sweep", "--lr=0.1,0.2", "--", "train.py", "--lr", "{lr}"]
    assert meant_option("--lr", LONG, words) == "parameters are given with --grid: --grid lr=0.1,0.2"
    assert meant_option("-a", LONG, ["list", "-a"]) == "use --all"


def test_an_option_of_a_script_that_stands_before_the_dashes_gives_the_whole_line() -> None:
    hint = meant_option("--lr", LONG, ["submit", "-N", "2", "train.py", "--lr", "1"])
    assert hint.endswith("clusterrun submit -N 2 -- train.py --lr 1")
    hint = meant_option("--nnodes", LONG, ["submit", "torchrun", "--nnodes", "2", "train.py"])
    assert hint.endswith("clusterrun submit -- torchrun --nnodes 2 train.py")


def test_an_argument_of_a_job_files_script_gives_the_whole_line() -> None:
    words = ["submit", "mine", "--nodes", "2", "--lr", "1"]
    assert meant_option("--lr", ["--nodes"], words).endswith("clusterrun submit mine --nodes 2 -- --lr 1")
    assert meant_option("--lr", ["--nodes"], ["submit", "--nodes", "2", "--lr", "1"]) == ""


def test_a_line_to_paste_keeps_the_options_that_were_typed() -> None:
    words = ["submit", "-N", "2", "train.py", "--time", "10m"]
    assert with_separator(words, ["train.py"]) == "clusterrun submit -N 2 --time 10m -- train.py"
    assert with_separator(["submit", "a.py", "--", "b c"], ["a.py", "b c"]) == "clusterrun submit -- a.py 'b c'"
    assert with_separator(["elsewhere"], ["train.py"]) == "clusterrun submit -- train.py"


def test_an_option_of_clusterrun_among_a_scripts_arguments_is_named() -> None:
    line = misplaced(["train.py", "--lr", "1", "--nodes=2", "--dry-run"])
    assert line.startswith("--nodes=2 stands after `--`, so it is an argument of train.py")
    assert misplaced(["train.py", "--lr", "1"]) == misplaced([]) == ""
    assert misplaced(["srun", "--nodes=2", "python", "train.py"]) == ""


def test_what_has_a_name_here_is_no_word_of_another_tool() -> None:
    assert not set(COMMANDS) & set(VERBS)
    assert not set(OPTIONS) & {*LONG, *(field.short for field in FIELDS)}


def test_every_option_stands_in_one_section_of_the_help(desk: Desk) -> None:
    said = desk.type("submit", "--help").out
    sections = (*SECTIONS, "This command")
    begins = [said.index(f"\n{section}:\n") for section in sections]
    assert begins == sorted(begins)
    texts = dict(
        zip(sections, (said[at:end] for at, end in zip(begins, [*begins[1:], len(said)], strict=True)), strict=True)
    )
    for field in FIELDS:
        word = re.compile(rf"^  (?:-\w, )?--{field.name}\b(?!-)", re.MULTILINE)
        assert [section for section, text in texts.items() if word.search(text)] == [field.section], field.name


def test_letters_of_sbatch_mean_what_they_mean_there(desk: Desk) -> None:
    said = desk.type("render", "-N", "3", "-t", "2:00:00", "-p", "gpu", "-A", "me", "-J", "mine", "-x", "n7", "lm")
    for line in ("--nodes=3", '--time="2:00:00"', '--partition="gpu"', '--account="me"', '--exclude="n7"'):
        assert f"#SBATCH {line}\n" in said.out
