"""Answers that my windows share: when one is taken, when Slurm is asked all the same, that nobody waits for long."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterrun.job import JobId
from clusterrun.scheduler.slurm import cache
from clusterrun.scheduler.slurm import cache as kept_file
from clusterrun.scheduler.slurm.cache import QueueCache
from clusterrun.scheduler.slurm.scontrol import ClusterFacts
from clusterrun.system import shell
from tests.shared_answers import LONG_AGO, Clock, Window


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def window(tmp_path: Path, clock: Clock) -> Callable[..., Window]:
    return lambda *facts: Window(tmp_path / "state", clock, *facts)


@pytest.fixture
def pair(window: Callable[..., Window]) -> tuple[Window, Window]:
    """Two windows; the first has asked and was told that 5 runs and 6 is over."""
    first, second = window(), window()
    first.says(j5="RUNNING", j6="COMPLETED").ask("5", since=math.inf)
    return first, second.says(j5="COMPLETING")


def test_what_one_window_heard_serves_another_for_ten_seconds(pair: tuple[Window, Window], clock: Clock) -> None:
    _, second = pair
    clock.now += 9.5
    assert second.ask("5") == (["RUNNING", "COMPLETED"], 9.5) and second.asked == 0
    clock.now += 0.5
    assert second.ask("5") == (["COMPLETING"], 0.0) and second.asked == 1


def test_a_job_that_is_missing_or_over_is_asked_about(pair: tuple[Window, Window]) -> None:
    _, second = pair
    for ids in (("7",), ("5", "7"), ("6",), ("5", "6")):
        assert second.ask(*ids)[1] == 0.0
        pair[0].ask("5", since=math.inf)
    assert second.asked == 4


def test_an_array_of_which_a_task_is_over_is_asked_about(window: Callable[..., Window]) -> None:
    first, second = window(), window()
    first.says(j5_1="RUNNING", j5_2="FAILED").ask("5", since=math.inf)
    second.ask("5")
    assert second.asked == 1


def test_what_was_heard_before_files_told_of_something_is_not_taken(pair: tuple[Window, Window]) -> None:
    second = pair[1]
    heard = second.kept.heard()
    assert heard is not None and abs(heard.begun - time.time()) < 5
    second.ask("5", since=heard.begun - cache.SKEW - 0.1)
    assert second.asked == 0
    for since in (heard.begun - cache.SKEW + 0.1, heard.begun + 5, math.inf):
        pair[0].ask("5", since=math.inf)
        second.asked = 0
        second.ask("5", since=since)
        assert second.asked == 1, since


def test_a_slow_answer_is_as_old_as_its_question(window: Callable[..., Window], clock: Clock) -> None:
    first, second = window(), window()
    first.says(j5="RUNNING")
    run = first.slurm._run

    def slow(*args: Any, **kwargs: Any) -> shell.Completed:
        clock.now += 7
        return run(*args, **kwargs)

    first.slurm._run = slow
    first.ask("5")
    heard = second.kept.heard()
    assert heard is not None and heard.age == 7 and heard.begun < time.time() - 6


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:-10],
    "longer": lambda data: data + b"x\n",
    "another state": lambda data: data.replace(b"COMPLETED", b"RUNNING"),
    "no head": lambda data: data.partition(b"\n")[2],
    "no object": lambda data: b"[]\n" + data.partition(b"\n")[2],
    "no numbers": lambda data: data.replace(b'"begun": ', b'"begun": "x", "was": '),
    "bytes": lambda data: bytes(range(256)) * 9,
    "deep": lambda data: b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_no_answer(pair: tuple[Window, Window], damage: Callable[[bytes], bytes]) -> None:
    second = pair[1]
    path = second.kept._path
    path.write_bytes(damage(path.read_bytes()))
    assert second.ask("5") == (["COMPLETING"], 0.0)


def test_nobody_elses_answer_is_taken(
    pair: tuple[Window, Window], window: Callable[..., Window], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = pair
    assert window(ClusterFacts("other", False, False)).kept.heard() is None, "another cluster's"
    uid = os.getuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: uid + 1)
        assert second.kept.heard() is None, "another user's"
    with monkeypatch.context() as patch:
        patch.setattr(kept_file, "boot_id", lambda: "another")
        assert second.kept.heard() is None, "from before this machine was started"
    monkeypatch.setattr(kept_file, "host_name", lambda: "../another machine")
    assert window().kept.heard() is None and second.kept.heard() is not None


@pytest.mark.parametrize("kind", ["symlink", "fifo", "folder"])
def test_what_is_no_file_of_mine_is_not_read(pair: tuple[Window, Window], tmp_path: Path, kind: str) -> None:
    second = pair[1]
    path = second.kept._path
    path.rename(tmp_path / "elsewhere")
    if kind == "symlink":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert second.kept.heard() is None and second.ask("5")[1] == 0.0


def test_a_clock_that_was_set_makes_nothing_young(pair: tuple[Window, Window], clock: Clock) -> None:
    second = pair[1]
    clock.now += 3
    for jump in (-3600.0, -5.0, 5.0):
        second.wall = jump
        assert second.kept.heard() is None
    second.wall = 0.0
    assert second.kept.heard() is not None
    clock.now -= 10
    assert second.kept.heard() is None, "an answer from the future"


def test_a_change_of_mine_outdates_what_was_heard(pair: tuple[Window, Window]) -> None:
    first, second = pair
    for change in (lambda: first.slurm.cancel([JobId("9")]), lambda: first.slurm.hold(JobId("9"))):
        first.ask("5", since=math.inf)
        assert second.kept.heard() is not None
        change()
        assert second.kept.heard() is None


def test_a_silent_slurm_leaves_nothing_to_take(window: Callable[..., Window]) -> None:
    first, second = window(), window()
    first.status = 1
    answer, age = cache.cached_query(first.slurm, [JobId("5")], LONG_AGO)
    assert not answer.complete and age == 0.0
    second.says(j5="RUNNING").ask("5")
    assert second.asked == 1 and second.waited == []


def test_whoever_asks_is_waited_for(window: Callable[..., Window]) -> None:
    first, second = window(), window()
    first.says(j5="RUNNING")
    assert first.kept.take_turn()

    def answered() -> None:
        first.slurm.query()
        first.kept.end_turn()

    second.while_waiting = answered
    assert second.ask("5") == (["RUNNING"], 0.0)
    assert second.asked == 0 and len(second.waited) == 1


def test_one_who_never_gets_an_answer_is_not_waited_for(window: Callable[..., Window], clock: Clock) -> None:
    first, second = window(), window().says(j5="RUNNING")
    assert first.kept.take_turn()
    assert second.ask("5")[0] == ["RUNNING"] and second.asked == 1
    assert sum(second.waited) == pytest.approx(cache.PATIENCE, abs=0.2)
    assert not second.kept.take_turn(), "the turn is still the other's"
    clock.now += kept_file.TURN
    second.waited.clear()
    assert second.ask("5")[0] == ["RUNNING"] and second.waited == []


def test_a_turn_of_one_who_is_gone_is_free(window: Callable[..., Window], monkeypatch: pytest.MonkeyPatch) -> None:
    one = window()
    for word in ("", "x", f"{kept_file.boot_id()} 999999999 1 1000", f"another {os.getpid()} 1 1000"):
        one.kept.end_turn()
        one.kept._folder.mkdir(parents=True, exist_ok=True)
        one.kept._turn.unlink(missing_ok=True)
        one.kept._turn.symlink_to(word or "?")
        assert one.kept.take_turn()


def test_the_end_of_a_job_is_asked_about_whoever_has_the_turn(pair: tuple[Window, Window]) -> None:
    first, second = pair
    assert first.kept.take_turn()
    assert second.ask("5", since=math.inf) == (["COMPLETING"], 0.0) and second.waited == []


def test_the_turn_ends_where_asking_fails(window: Callable[..., Window]) -> None:
    one, other = window(), window()

    def interrupted(*args: Any, **kwargs: Any) -> shell.Completed:
        raise KeyboardInterrupt

    one.slurm._run = interrupted
    with pytest.raises(KeyboardInterrupt):
        one.ask("5")
    assert other.kept.take_turn()


def test_where_nothing_can_be_kept_everybody_asks(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "state").write_text("no folder")
    one, other = Window(tmp_path / "state", clock), Window(tmp_path / "state", clock)
    assert one.says(j5="RUNNING").ask("5") == other.says(j5="RUNNING").ask("5") == (["RUNNING"], 0.0)
    assert (one.asked, other.asked, one.waited, other.waited) == (1, 1, [], [])


def test_no_turn_is_left_behind_by_a_process_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib; from clusterrun.scheduler.slurm.cache import QueueCache;"
        f"cache = QueueCache(pathlib.Path({str(tmp_path)!r}), 'default', 'lab');"
        "assert cache.take_turn(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], timeout=30)
    (link,) = tmp_path.glob("*.asking")
    assert link.is_symlink()
    assert QueueCache(tmp_path, "default", "lab").take_turn()
