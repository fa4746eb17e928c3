"""The queue cache: when a cached answer is used, when Slurm is queried, and that no process waits for long."""

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

from clusterrun.base.job import JobId
from clusterrun.scheduler import ClusterFacts
from clusterrun.scheduler.slurm import cache
from clusterrun.scheduler.slurm.cache import QueueCache
from clusterrun.system import shell
from tests.support.patience import HUNG
from tests.support.shared_answers import LONG_AGO, Clock, Window


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def window(tmp_path: Path, clock: Clock) -> Callable[..., Window]:
    return lambda *facts: Window(tmp_path / "state", clock, *facts)


@pytest.fixture
def pair(window: Callable[..., Window]) -> tuple[Window, Window]:
    """Two processes; the first has queried: 5 is running and 6 has ended."""
    first, second = window(), window()
    first.says(j5="RUNNING", j6="COMPLETED").ask("5", since=math.inf)
    return first, second.says(j5="COMPLETING")


def test_an_answer_serves_other_processes_for_ten_seconds(pair: tuple[Window, Window], clock: Clock) -> None:
    _, second = pair
    clock.now += 9.5
    assert second.ask("5") == (["RUNNING", "COMPLETED"], 9.5) and second.asked == 0
    clock.now += 0.5
    assert second.ask("5") == (["COMPLETING"], 0.0) and second.asked == 1


def test_a_job_that_is_missing_or_has_ended_is_queried(pair: tuple[Window, Window]) -> None:
    _, second = pair
    for ids in (("7",), ("5", "7"), ("6",), ("5", "6")):
        assert second.ask(*ids)[1] == 0.0
        pair[0].ask("5", since=math.inf)
    assert second.asked == 4


def test_an_array_with_an_ended_task_is_queried(window: Callable[..., Window]) -> None:
    first, second = window(), window()
    first.says(j5_1="RUNNING", j5_2="FAILED").ask("5", since=math.inf)
    second.ask("5")
    assert second.asked == 1


def test_an_answer_from_before_a_change_in_the_records_is_not_used(pair: tuple[Window, Window]) -> None:
    first, second = pair

    def begun() -> float:
        cached = second.cache.load()
        assert cached is not None
        return cached[2]

    second.ask("5", since=begun() - cache.SKEW - 0.1)
    assert second.asked == 0
    for after in (-cache.SKEW + 0.1, 5, math.inf):
        first.ask("5", since=math.inf)  # a new answer, whose file is as old as its writing took
        second.asked = 0
        second.ask("5", since=begun() + after)
        assert second.asked == 1, after


def test_a_slow_answer_is_as_old_as_its_question(window: Callable[..., Window], clock: Clock) -> None:
    first, second = window(), window()
    first.says(j5="RUNNING")
    run = first.slurm._run

    def slow(*args: Any, **kwargs: Any) -> shell.Completed:
        clock.now += 7
        return run(*args, **kwargs)

    first.slurm._run = slow
    first.ask("5")
    cached = second.cache.load()
    assert cached is not None
    _, age, begun = cached
    assert age == 7 and begun < time.time() - 6


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
    path = second.cache._path
    path.write_bytes(damage(path.read_bytes()))
    assert second.ask("5") == (["COMPLETING"], 0.0)


def test_an_answer_of_another_cluster_user_or_boot_is_not_used(
    pair: tuple[Window, Window], window: Callable[..., Window], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = pair
    assert window(ClusterFacts("other", False, False)).cache.load() is None, "another cluster's"
    uid = os.getuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: uid + 1)
        assert second.cache.load() is None, "another user's"
    with monkeypatch.context() as patch:
        patch.setattr(cache, "boot_id", lambda: "another")
        assert second.cache.load() is None, "from before this machine was started"
    monkeypatch.setattr(cache, "host_name", lambda: "../another machine")
    assert window().cache.load() is None and second.cache.load() is not None


@pytest.mark.parametrize("kind", ["symlink", "fifo", "folder"])
def test_what_is_no_file_of_mine_is_not_read(pair: tuple[Window, Window], tmp_path: Path, kind: str) -> None:
    second = pair[1]
    path = second.cache._path
    path.rename(tmp_path / "elsewhere")
    if kind == "symlink":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert second.cache.load() is None and second.ask("5")[1] == 0.0


def test_a_clock_that_was_set_makes_nothing_young(pair: tuple[Window, Window], clock: Clock) -> None:
    second = pair[1]
    clock.now += 3
    for jump in (-3600.0, -5.0, 5.0):
        second.wall = jump
        assert second.cache.load() is None
    second.wall = 0.0
    assert second.cache.load() is not None
    clock.now -= 10
    assert second.cache.load() is None, "an answer from the future"


def test_a_cancel_or_hold_invalidates_the_cache(pair: tuple[Window, Window]) -> None:
    first, second = pair
    for change in (lambda: first.slurm.cancel([JobId("9")]), lambda: first.slurm.hold(JobId("9"))):
        first.ask("5", since=math.inf)
        assert second.cache.load() is not None
        change()
        assert second.cache.load() is None


def test_a_failed_query_leaves_no_answer_and_no_claim(window: Callable[..., Window]) -> None:
    first, second = window(), window()
    first.status = 1
    answer, age = first.slurm.cached_query([JobId("5")], LONG_AGO)
    assert not answer.complete and age == 0.0
    second.says(j5="RUNNING").ask("5")
    assert second.asked == 1 and second.waited == []


def test_a_query_of_another_process_is_waited_for(window: Callable[..., Window]) -> None:
    first, second = window(), window()
    first.says(j5="RUNNING")
    assert first.cache.begin_query()

    def answered() -> None:
        first.slurm.query()
        first.cache.end_query()

    second.while_waiting = answered
    assert second.ask("5") == (["RUNNING"], 0.0)
    assert second.asked == 0 and len(second.waited) == 1


def test_a_query_that_takes_too_long_is_not_waited_for(window: Callable[..., Window]) -> None:
    first, second = window(), window().says(j5="RUNNING")
    assert first.cache.begin_query()
    assert second.ask("5")[0] == ["RUNNING"] and second.asked == 1
    assert sum(second.waited) == pytest.approx(cache.PATIENCE, abs=0.2)
    assert not second.cache.begin_query(), "the claim is still the other's"


def test_an_end_is_queried_even_while_another_process_queries(pair: tuple[Window, Window]) -> None:
    first, second = pair
    assert first.cache.begin_query()
    assert second.ask("5", since=math.inf) == (["COMPLETING"], 0.0) and second.waited == []


def test_the_claim_ends_if_the_query_fails(window: Callable[..., Window]) -> None:
    one, other = window(), window()

    def interrupted(*args: Any, **kwargs: Any) -> shell.Completed:
        raise KeyboardInterrupt

    one.slurm._run = interrupted
    with pytest.raises(KeyboardInterrupt):
        one.ask("5")
    assert other.cache.begin_query()


def test_without_a_writable_cache_every_process_queries(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "state").write_text("no folder")
    one, other = Window(tmp_path / "state", clock), Window(tmp_path / "state", clock)
    assert one.says(j5="RUNNING").ask("5") == other.says(j5="RUNNING").ask("5") == (["RUNNING"], 0.0)
    assert (one.asked, other.asked, one.waited, other.waited) == (1, 1, [], [])


def test_the_claim_of_a_killed_process_does_not_block_others(tmp_path: Path) -> None:
    code = (
        "import os, pathlib; from clusterrun.scheduler.slurm.cache import QueueCache;"
        f"cache = QueueCache(pathlib.Path({str(tmp_path)!r}), 'default', 'lab');"
        "assert cache.begin_query(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], timeout=HUNG)
    assert [*tmp_path.glob("*.asking")]
    assert QueueCache(tmp_path, "default", "lab").begin_query()
