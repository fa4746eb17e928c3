"""What one rank notices of process groups, and what a run's result is made of."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as torch_dist

from clusterrun.worker.node import probe
from clusterrun.worker.rank import worlds
from clusterrun.worker.rank.distenv import DistEnv
from clusterrun.worker.rank.worlds import (
    APART,
    IDLE,
    INTERRUPTED,
    JOINED,
    OWN_WORLD,
    SOME_JOINED,
    UNKNOWN,
    UNUSED,
    GroupWatch,
)
from tests.support.patience import HUNG

C10D = torch_dist.distributed_c10d
DIST = DistEnv(0, 0, 2, 1, 0, "n0", "h", 0, "slurm", ("127.0.0.1", 12345))


@pytest.fixture(autouse=True)
def _own_children_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the processes that earlier tests left to this process: theirs may have loaded torch too."""
    descendants = probe.descendants
    earlier = {*descendants(os.getpid())}
    monkeypatch.setattr(probe, "descendants", lambda pid: [each for each in descendants(pid) if each not in earlier])


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupWatch]:
    """A watch over this process, whose torch is as before at the end."""
    monkeypatch.setattr(C10D, "_update_default_pg", lambda group: None)
    for store in (torch_dist.TCPStore, torch_dist.FileStore):
        monkeypatch.setattr(store, "__init__", store.__init__)
    watch = GroupWatch(DIST)
    watch.start(in_process=True)
    yield watch
    watch.close()


def test_a_script_that_joins_nothing_is_apart(watch: GroupWatch) -> None:
    torch.nn.Linear(2, 1)(torch.ones(2)).backward()
    assert watch.joined() is False and watch.close() == APART


def test_a_script_that_computes_no_gradient_has_not_trained(watch: GroupWatch) -> None:
    with torch.no_grad():
        torch.nn.Linear(2, 1)(torch.ones(2))
    assert watch.joined() is False and watch.close() == IDLE


def test_a_store_that_this_rank_holds_is_a_world_of_its_own(watch: GroupWatch) -> None:
    torch_dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    assert watch.own_world() == "a rendezvous of its own" and watch.close() == OWN_WORLD


def test_a_group_of_several_ranks_counts_and_is_remembered_after_its_end(watch: GroupWatch) -> None:
    C10D._update_default_pg(SimpleNamespace(size=lambda: 2))
    C10D._update_default_pg(None)
    assert watch.joined() is True and watch.close() == JOINED


def test_a_group_of_one_rank_does_not_count(watch: GroupWatch, tmp_path: Path) -> None:
    torch_dist.FileStore(str(tmp_path / "a"), 1)
    C10D._update_default_pg(SimpleNamespace(size=lambda: 1))
    C10D._update_default_pg("non_group_member")
    assert watch.close() == IDLE


def test_a_forked_child_that_joins_counts(watch: GroupWatch) -> None:
    child = os.fork()
    if child == 0:
        C10D._update_default_pg(SimpleNamespace(size=lambda: 2))
        os._exit(0)
    os.waitpid(child, 0)
    assert watch.joined() is True


def test_a_store_of_its_own_leaves_it_unknown(watch: GroupWatch, tmp_path: Path) -> None:
    assert torch_dist.FileStore(str(tmp_path / "a"), 2).num_keys() >= 0
    assert watch.joined() is None and watch.close() == UNKNOWN


def test_a_store_is_not_counted_after_the_report(watch: GroupWatch, tmp_path: Path) -> None:
    assert watch.close() == IDLE
    torch_dist.FileStore(str(tmp_path / "a"), 2)
    assert watch.joined() is False


def test_accelerate_with_one_process_does_not_use_the_group_that_it_joined(
    watch: GroupWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    C10D._update_default_pg(SimpleNamespace(size=lambda: 2))
    shared = {"num_processes": 1}
    monkeypatch.setitem(
        sys.modules, "accelerate.state", SimpleNamespace(PartialState=SimpleNamespace(_shared_state=shared))
    )
    assert watch.joined() is False
    shared["num_processes"] = 2
    assert watch.joined() is True
    shared["num_processes"] = 1
    used = SimpleNamespace(_get_sequence_number_for_group=lambda: 3)
    monkeypatch.setattr(C10D, "_world", SimpleNamespace(pg_map=[used]))
    assert watch.joined() is True
    assert watch.close() == JOINED


def test_a_torch_without_the_setter_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(C10D, "_update_default_pg")
    watch = GroupWatch(DIST)
    watch.start(in_process=True)
    assert watch.close() == UNKNOWN


@pytest.mark.parametrize(
    ("code", "port", "expected"),
    [
        ("import torch", "12345", APART),
        ("import torch", "29500", UNKNOWN),  # under a launcher in it, which has a store of its own
        ("pass", "12345", UNKNOWN),  # no torch in it
    ],
)
def test_a_command_is_apart_if_it_loads_torch_under_the_runs_variables(code: str, port: str, expected: str) -> None:
    watch = GroupWatch(DIST)
    command = f"{code}; print(flush=True); import time; time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", command], env=os.environ | {"MASTER_PORT": port}, stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None and child.stdout.readline()
            watch.start(in_process=False)
            deadline = time.monotonic() + (HUNG if expected == APART else 20 if code == "import torch" else 2)
            while not any(watch._flags[:]) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert watch.close() == expected
        finally:
            child.kill()


def environ(**variables: str) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in variables.items()}


def test_the_first_rank_of_a_launcher_below_this_rank_tells_its_world() -> None:
    watch = GroupWatch(DIST)
    watch._note_world(environ(MASTER_PORT="29500", RANK="1", WORLD_SIZE="2"))
    assert watch.own_world() == ""
    watch._launcher = "torchrun"
    watch._note_world(environ(MASTER_PORT="29500", RANK="0", WORLD_SIZE="2"))
    assert watch.own_world() == "a world of its own by torchrun, of 2 ranks"
    watch.set_joined()
    assert watch.own_world() == "", "it trains with the others"


@pytest.mark.parametrize(
    ("line", "launcher"),
    [
        (b"python\0/bin/torchrun\0--standalone\0train.py\0", b"torchrun"),
        (b"python\0-m\0torch.distributed.run\0train.py\0", b"torch.distributed.run"),
        (b"python\0/x/accelerate\0launch\0train.py\0", b"accelerate"),
        (b"python\0torchrun_notes.py\0", None),
        (b"", None),
    ],
)
def test_a_launcher_is_known_by_its_command_line(line: bytes, launcher: bytes | None) -> None:
    found = worlds.LAUNCHERS.search(line)
    assert (found and next(filter(None, found.groups()))) == launcher


def test_worlds_of_running_ranks_are_told_from_two_on() -> None:
    assert worlds.running_message([], 4) == worlds.running_message(["a world of its own, of 4 ranks"], 4) == ""
    line = worlds.running_message(["a world of its own by torchrun, of 2 ranks"] * 4, 4)
    assert line.startswith("the ranks do not train together: 4 of 4 ranks have started a world of its own by torchrun")


@pytest.mark.parametrize(
    ("reports", "keys", "result"),
    [
        ([APART, APART], [], APART),
        ([APART, JOINED], [], SOME_JOINED),
        ([IDLE, IDLE], [], IDLE),
        ([IDLE, APART], [], APART),
        ([OWN_WORLD, OWN_WORLD], [], OWN_WORLD),
        ([OWN_WORLD, UNKNOWN], [], UNKNOWN),  # the first rank's world may be that of all
        ([OWN_WORLD, OWN_WORLD, JOINED], [], SOME_JOINED),
        ([APART, UNKNOWN], [], UNKNOWN),
        ([APART, INTERRUPTED], [], INTERRUPTED),
        ([JOINED, INTERRUPTED], [], SOME_JOINED),
        ([APART, APART], ["default_pg/0//cpu//0/1"], SOME_JOINED),  # of processes that the ranks started
        ([UNUSED, UNUSED], ["default_pg/0//cpu//0/1"], APART),  # of the group that was not used
        ([UNUSED, JOINED], ["default_pg/0//cpu//0/1"], SOME_JOINED),
    ],
)
def test_the_result_of_a_run(reports: list[str], keys: list[str], result: str) -> None:
    assert worlds.decide(reports, keys) == result


@pytest.mark.parametrize(
    ("result", "ranks", "process_group", "begins", "fails"),
    [
        (APART, 4, "expected", "no rank used a process group: the job ran as 4 separate programs", False),
        (IDLE, 4, "expected", "no rank used a process group: the job ran as 4 separate programs, none of which", False),
        (OWN_WORLD, 4, "expected", "no rank used a process group with the others: the job ran as 4 separate", False),
        (OWN_WORLD, 4, "required", "--require-group: no rank used a process group with the others", True),
        (OWN_WORLD, 4, "independent", "", False),
        (APART, 4, "required", "--require-group: no rank used a process group: the job ran as 4", True),
        (UNKNOWN, 4, "required", "--require-group: no process group was detected", True),
        (APART, 4, "independent", "", False),
        (UNKNOWN, 4, "expected", "", False),
        (INTERRUPTED, 4, "required", "", False),
        (SOME_JOINED, 4, "required", "", False),
        (APART, 1, "expected", "", False),
        (APART, 1, "required", "", False),
    ],
)
def test_who_gets_a_line_and_who_fails(result: str, ranks: int, process_group: str, begins: str, fails: bool) -> None:
    line, is_error = worlds.message(result, ranks, process_group)
    assert line.startswith(begins) and bool(line) == bool(begins) and is_error == fails
