"""Answers that my windows share: when one is taken, when Slurm is asked all the same, that nobody waits for long."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from clusterrun import shell
from clusterrun.cluster import Cluster
from clusterrun.job import JobId, JobStatus
from clusterrun.live.source import Source
from clusterrun.scheduler import kept as kept_file
from clusterrun.scheduler import lately
from clusterrun.scheduler.kept import Kept
from clusterrun.scheduler.slurm import ClusterFacts, SlurmScheduler
from clusterrun.scheduler.slurm_text import _SQUEUE, SEP
from clusterrun.states import RunState
from clusterrun.store import RunRecord, Store
from clusterrun.watch import Watch, changed_at
from tests.desks import Desk
from tests.recording import attempt, claim, end, submitted

FACTS = ClusterFacts("lab", accounting=False, gpus=False)
LONG_AGO = 0.0


class Window:
    """One of my windows: Slurm as it asks it, on a clock that is set by hand; `asked` counts its questions."""

    def __init__(self, state: Path, clock: Callable[[], float], facts: ClusterFacts = FACTS) -> None:
        self.slurm = SlurmScheduler(facts, {}, run=self._run, cache=state)
        self.wall = 0.0
        self.slurm.kept = self.kept = Kept(
            state / "clusters", "default", self.slurm.cluster, clock=clock, wall=lambda: clock() + self.wall
        )
        self.asked, self.answer, self.status = 0, "", 0
        self.waited: list[float] = []
        self.while_waiting: Callable[[], object] = lambda: None

    def says(self, **states: str) -> Window:
        self.answer = "".join(_row(job.removeprefix("j"), state) for job, state in states.items())
        return self

    def ask(self, *ids: str, since: float = LONG_AGO) -> tuple[list[str], float]:
        """The states that are told, and their age."""
        answer, age = lately.ask(self.slurm, [JobId.parse(i) for i in ids], since, sleep=self._sleep)
        return [job.state for job in answer.jobs], age

    def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.while_waiting()

    def _run(self, argv: Sequence[str], **_: Any) -> shell.Completed:
        self.asked += 1
        return shell.Completed(self.status, self.answer, "slurm_load_jobs error: no" if self.status else "")


def _row(job: str, state: str) -> str:
    cells = {"%i": job, "%A": job, "%T": state, "%j": "x", "%D": "1", "%M": "1:00"}
    return SEP.join(cells.get(column, "") for column in _SQUEUE) + "\n"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


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
    second.ask("5", since=heard.begun - lately.SKEW - 0.1)
    assert second.asked == 0
    for since in (heard.begun - lately.SKEW + 0.1, heard.begun + 5, math.inf):
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
    answer, age = lately.ask(first.slurm, [JobId("5")], LONG_AGO)
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
    assert sum(second.waited) == pytest.approx(lately.PATIENCE, abs=0.2)
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


def test_a_command_that_answers_once_always_asks(desk: Desk) -> None:
    desk.slurm.answer("squeue", _row("7", "RUNNING"))
    for words in (["list"], ["list"], ["status", "7"], ["list", "--json"]):
        before = desk.slurm.count("squeue")
        assert desk.type(*words).status == 0
        assert desk.slurm.count("squeue") > before


def test_a_run_of_this_machine_or_of_another_cluster_is_no_question_to_slurm(desk: Desk) -> None:
    store = Store(desk.project, desk.state)
    here = submitted(store, 1, "L1", scheduler="local", cluster="local")
    assert Cluster().lately([here])[1] == 0.0 and desk.slurm.calls == []
    away = submitted(store, 2, cluster="elsewhere")
    (state,), _ = Cluster().lately([away])
    assert "elsewhere" in state.note and desk.slurm.count("squeue") == 0


def test_a_list_takes_what_another_window_heard_and_brings_no_job_back(desk: Desk) -> None:
    one = submitted(Store(desk.project, desk.state), cluster="desk")
    row = _row("101", "RUNNING").replace("x\n", f"train1.{one.submission.token[:8]}\n")
    script = row.split(SEP)
    script[_SQUEUE.index("%o")] = str(one.run_dir / "script.sh")
    desk.slurm.answer("squeue", SEP.join(script))
    _age(one)
    first, second = Cluster(sparing=True), Cluster(sparing=True)
    assert [s.status.state for s in first.listing()] == ["RUNNING"] and desk.slurm.count("squeue") == 1
    assert [s.status.state for s in second.listing()] == ["RUNNING"] and desk.slurm.count("squeue") == 1
    assert second.heard_ago > 0 and second.listed is None
    desk.slurm.answer("squeue", SEP.join(script).replace("RUNNING", "COMPLETED"))
    attempt(one, end=end())
    assert desk.type("status", "101").status == 0  # its end is seen there, and written down
    asked = desk.slurm.count("squeue")
    assert second.listing() == [] and desk.slurm.count("squeue") == asked, "what was just heard knows that it is over"
    kept = next((desk.state / "clusters").glob("*.squeue"))
    first.scheduler("slurm").query()
    data = kept.read_bytes()
    desk.slurm.answer("squeue", SEP.join(script))
    first.scheduler("slurm").query()  # an answer from before the end, as it may come from a slow squeue
    assert kept.read_bytes() != data
    desk.slurm.answer("squeue", SEP.join(script).replace("RUNNING", "COMPLETED"))
    assert second.listing() == [] and second.heard_ago == 0
    (state,) = second.states([one])
    assert state.status.state == "COMPLETED"


def test_top_asks_once_for_its_jobs_and_for_those_that_ended_meanwhile(desk: Desk) -> None:
    one = submitted(Store(desk.project, desk.state), cluster="desk")
    row = _row("101", "RUNNING").replace("x\n", f"train1.{one.submission.token[:8]}\n")
    desk.slurm.answer("squeue", row)
    source = Source(Cluster(), polled=Cluster(sparing=True))
    assert [s.status.state for s in source.jobs()] == ["RUNNING"]
    over = row.replace("RUNNING", "COMPLETED").split(SEP)
    over[_SQUEUE.index("%e")] = str(int(time.time()))
    desk.slurm.answer("squeue", SEP.join(over))
    attempt(one, end=end())
    for asked in (2, 3):
        assert [s.status.state for s in source.jobs()] == ["COMPLETED"]
        assert desk.slurm.count("squeue") == asked


# -- what a run's files tell, and watches on them ------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    one = submitted(Store(tmp_path, tmp_path / "state"))
    _age(one)
    return one


def _age(one: RunRecord) -> None:
    """Let everything that a run's files tell be a day old."""
    for path in [*one.run_dir.rglob("*"), one.run_dir]:
        os.utime(path, (time.time() - 86_400,) * 2)


def test_when_a_runs_files_told_of_something(run: RunRecord) -> None:
    long_ago = changed_at(run)
    assert long_ago < time.time() - 80_000
    claim(run)
    assert changed_at(run) > time.time() - 10
    _age(run)
    folder = attempt(run)
    assert changed_at(run) > time.time() - 10
    _age(run)
    (folder / "rank-0.progress").write_text("{}")
    assert changed_at(run) < time.time() - 80_000, "ranks tell every ten seconds, and it changes no state"
    (folder / "start.json").write_text("{}")
    assert changed_at(run) > time.time() - 10
    _age(run)
    (run.run_dir / "submissions" / "x").touch()
    assert changed_at(run) > time.time() - 10
    attempt(run, end=end())
    _age(run)
    assert changed_at(run) == math.inf


@pytest.mark.parametrize("seed", range(5))
def test_twenty_windows_ask_as_one_and_see_the_end_no_later(
    window: Callable[..., Window], run: RunRecord, clock: Clock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A quiet job that leaves the queue without a word: one window alone sees that after 36 s at most."""
    monkeypatch.setattr("clusterrun.watch.random", random.Random(seed))
    windows = [window().says(j101="RUNNING") for _ in range(20)]

    def watch(one: Window) -> Watch:
        def states(jobs: Sequence[JobStatus]) -> list[RunState]:
            return [RunState(run, jobs[0])]

        def heard(runs: Sequence[RunRecord]) -> tuple[list[RunState], float]:
            answer, age = lately.ask(one.slurm, [JobId("101")], changed_at(run))
            return states(answer.jobs), age

        return Watch([run], lambda runs: states(one.slurm.query().jobs), sparing=True, lately=heard, now=clock)

    watches, at = [watch(one) for one in windows], list[float]()

    def pass_time(seconds: float) -> None:
        until = clock.now + seconds
        while clock.now < until:
            for one, each in zip(windows, watches, strict=True):
                before = one.asked
                each.look()
                at.extend([clock.now] * (one.asked - before))
            clock.now += 0.25

    pass_time(300 + seed * 7)
    gaps = [later - first for first, later in pairwise(at)]
    assert min(gaps) >= 10 and len(at) <= 31, gaps
    for one in windows:
        one.says(j101="CANCELLED")
    ended = clock.now
    while not all(each.states[0].status.is_over for each in watches):
        pass_time(0.25)
        assert clock.now - ended <= 36.5


def test_no_turn_is_left_behind_by_a_process_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib; from clusterrun.scheduler.kept import Kept;"
        f"k = Kept(pathlib.Path({str(tmp_path)!r}), 'default', 'lab'); assert k.take_turn(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], timeout=30)
    (link,) = tmp_path.glob("*.asking")
    assert link.is_symlink()
    assert Kept(tmp_path, "default", "lab").take_turn()
