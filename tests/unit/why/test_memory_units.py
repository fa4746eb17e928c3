"""What a row takes out of its line: figures with their unit, the node that speaks, a path to paste."""

from __future__ import annotations

import pytest

from clusterrun.why.causes.match import format_excess
from tests.unit.why.test_causes import judge


@pytest.mark.parametrize(
    ("used", "limit", "words"),
    [
        (320765952, 314572800, "305.9 MiB > 300.0 MiB"),  # bytes: Slurm 22.05
        (52917772, 20971520, "50.5 GiB > 20.0 GiB"),  # KiB: a release before
        (320765952 + 1024, 314572800, "320766976 > 314572800"),  # either
        (104861696, 104857600, "104861696 > 104857600 bytes"),
    ],
)
def test_unit_of_a_memory_limit_is_told_by_its_figures(used: int, limit: int, words: str) -> None:
    assert format_excess(used, limit) == words


def test_node_of_a_memory_limit_is_the_one_whose_slurmstepd_speaks() -> None:
    said = "2: slurmstepd-node1: error: StepId=7.0 exceeded memory limit (320765952 > 314572800), being killed\n"
    cause = judge(said + "srun: error: node2: task 2: Killed\nsrun: error: node1: tasks 0-1: Killed")
    assert (cause.kind, cause.rank, cause.node) == ("host-memory", None, "node1") and "on node1" in cause.sentence
    cause = judge(said + "srun: error: node2: task 2: Killed\nsrun: error: node1: task 0: Killed")
    assert (cause.rank, cause.node) == (0, "node1")
    cause = judge("srun: error: node2: task 2: Killed\n" + said)
    assert (cause.kind, cause.rank, cause.node) == ("host-memory", None, "node1")


def test_missing_file_gets_a_command_to_paste() -> None:
    assert judge("0: FileNotFoundError: [Errno 2] No such file or directory: 'a.txt'").command == "srun ls -ld a.txt"
    assert judge("0: FileNotFoundError: no data here").command == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[W220 15:04:41.611 socket.cpp:464] bind to [::]:29511 (errno: 98 - Address already in use).", "29511"),
        ("[W220 15:04:41.611 socket.cpp:464] bind (errno: 98 - Address already in use).", "is already in use"),
        ("OSError: [Errno 98] attempting to bind on address ('0.0.0.0', 8000): address already in use", "8000"),
        ("The client socket has timed out after 60s while trying to connect to (n1, 1234).", "(n1, 1234)"),
        ("RuntimeError: [x/tcp/pair.cc:525] Connection closed by peer [10.3.0.9]:45123", "[10.3.0.9]:45123"),
        ("MisconfigurationException('No supported gpu backend found!')", "No supported gpu backend found"),
    ],
)  # fmt: skip
def test_figures_of_an_answer_are_those_of_the_words_that_it_tells(line: str, words: str) -> None:
    sentence = judge(line).sentence
    assert words in sentence and "(port" not in sentence.replace(f"(port {words})", "")


def test_exception_that_follows_from_a_printed_line_is_told_with_that_line() -> None:
    follower = "AttributeError: 'NoneType' object has no attribute 'sizes'"
    trace = f'Traceback (most recent call last):\n  File "/p/a.py", line 3, in <module>\n    f()\n{follower}'
    assert judge(f"no such file: /data/x.idx\n{trace}").sentence == f"no such file: /data/x.idx; then {follower}"
    assert judge(f"no such file: /data/x.idx\nstep 5 loss 2\n{trace}").sentence == follower
    assert judge(f"no such file: /data/x.idx, using defaults\n{trace}").sentence == follower
