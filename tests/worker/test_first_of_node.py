"""Local rank 0 goes first; the other ranks of its node go on when it has passed, has ended, or a limit is over."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clusterrun.worker.rank.distenv import DistEnv, RunEnv
from clusterrun.worker.rank.first_of_node import FirstOfNode
from tests.support.folders import ROOT
from tests.support.patience import HUNG, until

LIMIT = 0.2  # seconds, where nobody passes


def dist(local_rank: int, node: int = 0) -> DistEnv:
    return DistEnv(2 * node + local_rank, local_rank, 4, 2, node, f"n{node}", "h", 0, "slurm", ("127.0.0.1", 12345))


@pytest.fixture
def start() -> Iterator[Callable[..., FirstOfNode]]:
    """Open the turns of a rank: `start(local_rank, node, limit)`, all of one run."""
    secret = uuid.uuid4().hex

    def open_turns(local_rank: int, node: int = 0, limit: float = HUNG, wanted: bool = True) -> FirstOfNode:
        turns = FirstOfNode()
        turns.open(
            dist(local_rank, node), RunEnv(local_main_process_first=wanted, join_timeout=2 * limit, secret=secret)
        )
        return turns

    yield open_turns


class Waiting:
    """A rank that enters a stage in a thread."""

    def __init__(self, turns: FirstOfNode, name: str = "import torch") -> None:
        self.entered = threading.Event()
        self._turns, self._name = turns, name
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with self._turns.stage(self._name):
            self.entered.set()


def test_the_others_enter_once_the_first_has_left_the_stage(start: Callable[..., FirstOfNode]) -> None:
    first = start(0)
    with first.stage("import torch"):
        other = Waiting(start(1))
        assert not other.entered.wait(0.3)
    assert other.entered.wait(HUNG)


def test_the_others_enter_when_the_first_says_so_within_the_stage(start: Callable[..., FirstOfNode]) -> None:
    first = start(0)
    with first.stage("start the script"):
        other = Waiting(start(1), "start the script")
        assert not other.entered.wait(0.3)
        first.passed("start the script")
        assert other.entered.wait(HUNG)


def test_each_stage_is_waited_for(start: Callable[..., FirstOfNode]) -> None:
    first, turns = start(0), start(1)
    with first.stage("import torch"):
        pass
    assert Waiting(turns).entered.wait(HUNG)
    later = Waiting(turns, "compile")
    assert not later.entered.wait(0.3)
    first.passed("compile")
    assert later.entered.wait(HUNG)


def test_who_comes_after_the_first_has_passed_waits_for_nothing(start: Callable[..., FirstOfNode]) -> None:
    first = start(0)
    first.passed("import torch")
    assert Waiting(start(1)).entered.wait(HUNG)


def test_who_comes_before_the_first_waits_for_it(start: Callable[..., FirstOfNode]) -> None:
    other = Waiting(start(1))
    assert not other.entered.wait(0.3)
    start(0).passed("import torch")
    assert other.entered.wait(HUNG)


def test_after_an_error_in_the_stage_the_others_wait_for_the_end_of_the_first(
    start: Callable[..., FirstOfNode],
) -> None:
    first = start(0)
    with pytest.raises(ZeroDivisionError), first.stage("import torch"):
        raise ZeroDivisionError
    assert not Waiting(start(1)).entered.wait(0.3)


def test_the_others_do_not_wait_for_a_first_that_has_ended(start: Callable[..., FirstOfNode]) -> None:
    program = "import sys; sys.path.insert(0, sys.argv[1]); from tests.worker.test_first_of_node import begin; begin()"
    argv = [sys.executable, "-c", program, str(ROOT)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "begun\n"
        turns = FirstOfNode()
        turns.open(dist(1), RunEnv(local_main_process_first=True, join_timeout=2 * HUNG, secret="of a process"))
        other = Waiting(turns)
        assert not other.entered.wait(0.3)
        process.kill()
    assert other.entered.wait(HUNG)


def begin() -> None:
    """Be local rank 0 until this process is killed."""
    first = FirstOfNode()
    first.open(dist(0), RunEnv(local_main_process_first=True, secret="of a process"))
    print("begun", flush=True)
    with first.stage("import torch"):
        sys.stdin.read()


def test_a_first_that_ends_before_it_takes_the_connection_is_over(start: Callable[..., FirstOfNode]) -> None:
    turns: Any = start(1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(turns._address)
        listener.listen()
        other = Waiting(turns)
        until(lambda: turns._first is not None)
    assert other.entered.wait(HUNG)


def test_after_the_limit_the_others_go_on_and_say_so(
    start: Callable[..., FirstOfNode], capsys: pytest.CaptureFixture[str]
) -> None:
    start_of_all = time.monotonic()
    with start(0).stage("compile"):
        for other in (start(1, limit=LIMIT), start(1, node=1, limit=LIMIT)):  # the second finds no first at all
            began = time.monotonic()
            with other.stage("compile"):
                assert time.monotonic() - began >= LIMIT
    said = capsys.readouterr().err.splitlines()
    waited = r"clusterrun: n{}: the other ranks waited (\d+) s for local rank 0 to compile and wait no longer"
    assert len(said) == 2, said
    for node, line in enumerate(said):
        found = re.fullmatch(waited.format(node), line)
        assert found and int(found[1]) <= time.monotonic() - start_of_all + 0.5, line


@pytest.mark.parametrize(("local_rank", "wanted"), [(0, True), (1, False)])
def test_the_first_waits_for_nobody_nor_does_a_run_without_the_option(
    start: Callable[..., FirstOfNode], local_rank: int, wanted: bool
) -> None:
    assert Waiting(start(local_rank, wanted=wanted)).entered.wait(HUNG)


def test_a_taken_address_ends_no_run(start: Callable[..., FirstOfNode]) -> None:
    first, second = start(0), start(0)
    with second.stage("import torch"):
        first.passed("import torch")
    assert Waiting(start(1)).entered.wait(HUNG)


def test_rubbish_and_half_a_line_pass_no_stage(start: Callable[..., FirstOfNode]) -> None:
    first: Any = start(0)
    other = Waiting(start(1))
    with first._lock:
        first._passed = b"\xff\n" * 300 + b"import tor"
    until(lambda: first._others)
    assert not other.entered.wait(0.3)
