"""Commands and watches that share squeue's answers: which query in any case, and that twenty query as one."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from clusterrun.base.job import JobId, JobStatus
from clusterrun.cluster import Cluster
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.scheduler.slurm.squeue import _JOB_FORMATS
from clusterrun.scheduler.slurm.values import SEP
from clusterrun.state.reconcile import Listing, RunState
from clusterrun.state.watch import Watch, records_changed_at
from clusterrun.top.source import TopData
from tests.support.command_desk import Desk
from tests.support.rank_files import put_progress
from tests.support.run_records import attempt, claim, end, submitted
from tests.support.shared_answers import Clock, Window, queue_row


def test_a_command_that_answers_once_always_queries(desk: Desk) -> None:
    desk.slurm.answer("squeue", queue_row("7", "RUNNING"))
    for words in (["list"], ["list"], ["status", "7"], ["list", "--json"]):
        before = desk.slurm.count("squeue")
        assert desk.type(*words).status == 0
        assert desk.slurm.count("squeue") > before


def test_a_run_of_this_machine_or_of_another_cluster_is_no_question_to_slurm(desk: Desk) -> None:
    store = Store(desk.project, desk.state)
    here = submitted(store, 1, "L1", scheduler="local", cluster="local")
    assert Cluster().cached_states([here]).age == 0.0 and desk.slurm.calls == []
    away = submitted(store, 2, cluster="elsewhere")
    (state,) = Cluster().cached_states([away]).states
    assert "elsewhere" in state.note and desk.slurm.count("squeue") == 0


def test_a_list_uses_the_cached_answer_and_brings_no_ended_job_back(desk: Desk) -> None:
    one = submitted(Store(desk.project, desk.state), cluster="desk")
    row = queue_row("101", "RUNNING").replace("x\n", f"train1.{one.submission.token[:8]}\n")
    script = row.split(SEP)
    script[_JOB_FORMATS.index("%o")] = str(one.run_dir / "script.sh")
    desk.slurm.answer("squeue", SEP.join(script))
    _age(one)
    first, second = Cluster(polling=True), Cluster(polling=True)
    assert [s.status.state for s in first.listing().states] == ["RUNNING"] and desk.slurm.count("squeue") == 1
    shared = second.listing()
    assert [s.status.state for s in shared.states] == ["RUNNING"] and desk.slurm.count("squeue") == 1
    assert shared.age > 0 and shared.answer is None
    desk.slurm.answer("squeue", SEP.join(script).replace("RUNNING", "COMPLETED"))
    attempt(one, end=end())
    assert desk.type("status", "101").status == 0  # its end is seen there, and written down
    asked = desk.slurm.count("squeue")
    assert second.listing().states == [] and desk.slurm.count("squeue") == asked, "the cache has its end"
    kept = next((desk.state / "clusters").glob("*.squeue"))
    first.scheduler("slurm").query()
    data = kept.read_bytes()
    desk.slurm.answer("squeue", SEP.join(script))
    first.scheduler("slurm").query()  # an answer from before the end, as it may come from a slow squeue
    assert kept.read_bytes() != data
    desk.slurm.answer("squeue", SEP.join(script).replace("RUNNING", "COMPLETED"))
    last = second.listing()
    assert last.states == [] and last.age == 0
    (state,) = second.states([one])
    assert state.status.state == "COMPLETED"


def test_top_asks_once_for_its_jobs_and_for_those_that_ended_meanwhile(desk: Desk) -> None:
    one = submitted(Store(desk.project, desk.state), cluster="desk")
    row = queue_row("101", "RUNNING").replace("x\n", f"train1.{one.submission.token[:8]}\n")
    desk.slurm.answer("squeue", row)
    source = TopData(Cluster(), polled=Cluster(polling=True))
    assert [s.status.state for s in source.jobs().states] == ["RUNNING"]
    over = row.replace("RUNNING", "COMPLETED").split(SEP)
    over[_JOB_FORMATS.index("%e")] = str(int(time.time()))
    desk.slurm.answer("squeue", SEP.join(over))
    attempt(one, end=end())
    for asked in (2, 3):
        assert [s.status.state for s in source.jobs().states] == ["COMPLETED"]
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
    long_ago = records_changed_at(run)
    assert long_ago < time.time() - 80_000
    claim(run)
    assert records_changed_at(run) > time.time() - 10
    _age(run)
    folder = attempt(run)
    assert records_changed_at(run) > time.time() - 10
    _age(run)
    put_progress(folder, 0, {})
    assert records_changed_at(run) < time.time() - 80_000, "ranks tell every ten seconds, and it changes no state"
    (folder / "start.json").write_text("{}")
    assert records_changed_at(run) > time.time() - 10
    _age(run)
    (run.run_dir / "submissions" / "x").touch()
    assert records_changed_at(run) > time.time() - 10
    attempt(run, end=end())
    _age(run)
    assert records_changed_at(run) == math.inf


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.faults) for seed in (2, 3, 4))])
def test_twenty_windows_ask_as_one_and_see_the_end_no_later(
    tmp_path: Path, run: RunRecord, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A quiet job that leaves the queue without a word: one window alone sees that after 36 s at most."""
    monkeypatch.setattr("clusterrun.state.pace.random", random.Random(seed))
    clock = Clock()
    windows = [Window(tmp_path / "state", clock).says(j101="RUNNING") for _ in range(20)]

    def watch(one: Window) -> Watch:
        def states(jobs: Sequence[JobStatus]) -> list[RunState]:
            return [RunState(run, jobs[0])]

        def cached(runs: Sequence[RunRecord]) -> Listing:
            answer, age = one.slurm.cached_query([JobId("101")], records_changed_at(run))
            return Listing(states(answer.jobs), age)

        return Watch([run], lambda runs: states(one.slurm.query().jobs), cached, follow=True, now=clock)

    watches, at = [watch(one) for one in windows], list[float]()

    def pass_time(seconds: float) -> None:
        until = clock.now + seconds
        while clock.now < until:
            for one, each in zip(windows, watches, strict=True):
                before = one.asked
                each.poll()
                at.extend([clock.now] * (one.asked - before))
            clock.now += 0.25

    pass_time(300 + seed * 7)
    gaps = [later - first for first, later in pairwise(at)]
    assert min(gaps) >= 10 and len(at) <= 31, gaps
    for one in windows:
        one.says(j101="CANCELLED")
    ended = clock.now
    while not all(each.poll().states[0].status.is_over for each in watches):
        pass_time(0.25)
        assert clock.now - ended <= 36.5
