"""What stands behind the two dashes: a script's own words arrive untouched, and launchers are translated."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.command_desk import Desk, refused, work_words


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["torchrun", "--nproc-per-node", "4", "train.py", "--lr", "1"], "--gpus-per-node 4 -- train.py --lr 1"),
        (["torchrun", "--nproc_per_node=4", "-m", "pkg.train", "--x"], "--gpus-per-node 4 -- -m pkg.train --x"),
        (["/opt/bin/torchrun", "train.py"], "-- train.py"),
        (["accelerate", "launch", "train.py", "a b"], "-- train.py 'a b'"),
        (["python", "-m", "torch.distributed.run", "--nnodes=2", "train.py"], "--nodes 2 -- train.py"),
        (["-m", "torch.distributed.launch", "train.py"], "-- train.py '--local-rank={local_rank}'"),
        (["srun", "-N2", "hostname"], "--nodes 2 --gpus-per-node 0 -- hostname"),
    ],
)
def test_launchers_are_translated_with_the_line_to_type(desk: Desk, words: list[str], line: str) -> None:
    said = desk.type("render", "--", *words)
    assert said.status == 0, said.err
    assert f" to: clusterrun submit {line}" in said.err.splitlines()[0]


def test_the_line_of_a_refused_launcher_does_what_it_says(desk: Desk) -> None:
    _, hint = refused(desk, "submit", "--", "torchrun", "--nproc_per_node=4", "--tee", "3", "train.py", "a b")
    assert hint == "clusterrun submit --gpus-per-node 4 -- train.py 'a b'"
    said = desk.type("render", *shlex.split(hint)[2:])
    assert work_words(said.out) == ["script", "--", str(desk.project / "train.py"), "a b"]
    assert "#SBATCH --gpus-per-node=4\n" in said.out


@pytest.mark.parametrize(
    ("words", "work"),
    [
        (["python", "train.py", "--lr", "1"], ["script", "--", "train.py", "--lr", "1"]),
        (["python3", "-u", "train.py"], ["script", "--", "train.py"]),
        (["/usr/bin/python3.11", "train.py", "-u"], ["script", "--", "train.py", "-u"]),
        (["python", "-m", "pkg.train", "-m"], ["module", "--", "pkg.train", "-m"]),
    ],
)
def test_python_is_left_out_with_a_notice(desk: Desk, words: list[str], work: list[str]) -> None:
    said = desk.type("render", "--", *words)
    assert said.status == 0 and f"clusterrun: ignoring {words[0]}" in said.err
    found = work_words(said.out)
    assert [Path(word).name if word.startswith("/") else word for word in found] == work


SCRIPT_WORDS = (
    "--help -h --json --debug -- -m --nodes 0 --version - --sbatch-arg=x ` ' \" \\ # * %j ! ~ & ; -n1 é🙂".split(" ")
)
SCRIPT_WORDS += ["", "a b", "$(touch x)", "\x1b[31m", "\t", "\r", "{{ x }}", "{% x %}", "{# x #}", "{## x"]


def test_the_scripts_own_words_arrive_untouched(desk: Desk) -> None:
    said = desk.type("render", "--", "train.py", *SCRIPT_WORDS)
    assert said.status == 0, said.err
    assert work_words(said.out) == ["script", "--", str(desk.project / "train.py"), *SCRIPT_WORDS]
    assert desk.type("render", "--", "train.py", "--help").out.startswith("#!")
    assert (
        desk.type("render", "--", "-m", "pkg.train", "-m", "x", "--").out.count("CR_WORK=(module -- pkg.train -m x --)")
        == 1
    )
    assert work_words(desk.type("render", "--", "env", "--help").out) == ["command", "--", "/usr/bin/env", "--help"]


def test_bytes_that_are_no_text_arrive_too(desk: Desk) -> None:
    said = desk.process("render", "--comment", "c\udcff", "--", "train.py", "\udcff\udc80")
    assert said.status == 0, said.err
    assert work_words(said.out)[-1] == "\udcff\udc80"
