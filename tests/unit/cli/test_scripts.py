"""What stands behind the two dashes: a script's own words arrive untouched, and launchers are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_desk import Desk, refused, work_words


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["torchrun", "--nproc-per-node", "4", "train.py", "--lr", "1"], "-- train.py --lr 1"),
        (["torchrun", "--nproc_per_node=4", "-m", "pkg.train", "--x"], "-- -m pkg.train --x"),
        (["/opt/bin/torchrun", "train.py"], "-- train.py"),
        (["accelerate", "launch", "train.py", "a b"], "-- train.py 'a b'"),
        (["python", "-m", "torch.distributed.run", "--nnodes=2", "train.py"], "-- train.py"),
        (["-m", "torch.distributed.launch", "train.py"], "-- train.py"),
        (["mpirun", "-np", "4", "python", "train.py"], "-- train.py"),
        (["srun", "hostname"], "-- train.py"),
    ],
)
def test_launchers_are_refused_with_the_line_to_type(desk: Desk, words: list[str], hint: str) -> None:
    line, told = refused(desk, "submit", "--", *words)
    assert "starts its own ranks" in line
    assert told == f"clusterrun submit --nodes 2 --gpus-per-node 4 {hint}"


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
