"""`list --watch` and `status --watch`: how rarely Slurm is asked, what is printed, and when it ends."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from clusterrun.base.job import JobId, JobStatus, outcome_of
from clusterrun.cli.common.watching import JobList, NamedJobs, watch_jobs
from clusterrun.cluster import Cluster
from clusterrun.records.store import Store
from clusterrun.state.filters import JobFilter
from clusterrun.state.pace import Pace
from clusterrun.state.reconcile import Listing, RunState
from clusterrun.terminal.ui import Ui
from tests.support.command_desk import Desk
from tests.support.installed_command import until
from tests.support.listed_jobs import SILENT, rows, run, run_row
from tests.support.patience import HUNG
from tests.support.run_records import attempt, claim, end


@pytest.fixture
def store(desk: Desk) -> Store:
    return Store(desk.project, desk.state)


class Stop(Exception):
    pass


def job(id: str, state: str = "RUNNING", **more: Any) -> RunState:
    return RunState(None, JobStatus(id=JobId(id), state=state, outcome=outcome_of(state), name="x", **more))


def watched(answers: list[list[RunState]], seconds: float) -> tuple[list[float], Ui]:
    """When a watch asked, over that many seconds of a clock that only sleeping moves; each answer once, the last on."""
    clock, asked = [0.0], list[float]()

    class Answers(JobList):
        def query(self) -> Listing:
            asked.append(clock[0])
            return Listing(answers[min(len(asked), len(answers)) - 1])

    def sleep(pause: float) -> None:
        clock[0] += pause
        if clock[0] > seconds:
            raise Stop

    with pytest.raises(Stop):
        view = Answers(Cluster(), [], JobFilter(), expand=False)
        watch_jobs(Ui("list"), view, pace=Pace(seed=1), sleep=sleep, now=lambda: clock[0])
    return asked, Ui("list")


def test_watching_asks_rarely(capsys: pytest.CaptureFixture[str]) -> None:
    asked, _ = watched([[job("1")]], 3600)
    gaps = [later - first for first, later in pairwise(asked)]
    assert min(gaps) >= 10 and max(gaps) <= 120 * 1.2 + 2 and len(asked) < 45


def test_watching_into_a_pipe_prints_a_block_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    watched([[job("1", "PENDING")], [job("1", elapsed=1)], [job("1", elapsed=90)], []], 600)
    blocks = capsys.readouterr().out.split("\n\n")
    assert len(blocks) == 3 and "PENDING" in blocks[0] and "RUNNING" in blocks[1] and "no active jobs" in blocks[2]
    assert "JOBID" in blocks[0]


@pytest.mark.parametrize(("words", "begins"), [(["list"], "7 "), (["status", "7"], "      job  7  job")])
def test_ctrl_c_ends_watching(desk: Desk, words: list[str], begins: str) -> None:
    desk.slurm.answer("squeue", rows({"i": "7"}))
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterrun", *words, "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    until(lambda: process.stdout.readline().startswith(begins), 20)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=HUNG)
    assert (process.returncode, err.strip()) == (130, "")
    # For a job id, the command asks two things: is the job ours, and what is its state? It asks every ten seconds.
    most = len(words) + (time.monotonic() - began) // 10
    assert len(words) <= desk.slurm.count("squeue") <= most and desk.slurm.count("sacct") == 0


@dataclass
class Watched:
    """`status --watch` on a clock that only sleeping moves; each event happens at its second."""

    events: dict[float, Callable[[], object]]
    out: io.StringIO = field(default_factory=io.StringIO)
    seconds: float = 0.0
    limit: float = 600.0

    def sleep(self, pause: float) -> None:
        self.seconds += pause
        for second in [second for second in self.events if second <= self.seconds]:
            self.events.pop(second)()
        if self.seconds > self.limit:
            raise Stop

    def watch(self, *names: str) -> Sequence[RunState]:
        ui, cluster = Ui("status", out=self.out), Cluster(polling=True)
        view = NamedJobs(cluster, [cluster.find(name) for name in names], explain=False)
        return watch_jobs(ui, view, pace=Pace(seed=1), sleep=self.sleep, now=lambda: self.seconds)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_watching_a_run_ends_with_it(desk: Desk, store: Store) -> None:
    one = run(store)

    def says(state: str, **more: Any) -> Callable[[], None]:
        return lambda: desk.slurm.answer("squeue", rows(run_row(one, T=state, **more)))

    says("PENDING", N="", r="Priority")()
    watched = Watched({30: says("RUNNING"), 60: says("RUNNING", M="1:30"), 100: says("FAILED")})
    (state,) = watched.watch("101")
    blocks = watched.out.getvalue().split("\n\n")
    assert [line for block in blocks for line in block.splitlines() if "state  " in line] == [
        "    state  PENDING", "    state  RUNNING", "    state  FAILED"
    ]  # fmt: skip
    assert state.status.state == "FAILED" and "next  clusterrun why 101" in blocks[-1]


def test_watching_shows_what_status_shows(desk: Desk, store: Store) -> None:
    one = run(store)
    desk.slurm.answer("squeue", rows({"i": "7", "T": "FAILED"}, run_row(one, T="COMPLETED", e=str(int(time.time())))))
    plain, watched = desk.type("status", "7", "101"), desk.type("status", "7", "101", "--watch")
    assert watched.status == plain.status == 0
    without_ages = [re.sub(r", \d+ s ago", "", said.out) for said in (plain, watched)]
    assert without_ages[0] == without_ages[1] and "7  job" in plain.out.splitlines()[1]


def test_the_end_record_of_a_run_is_asked_about_as_soon_as_the_pace_allows(desk: Desk, store: Store) -> None:
    one = run(store)
    desk.slurm.answer("squeue", rows(run_row(one)))

    def ends() -> None:
        attempt(one, end=end(0))
        desk.slurm.answer("squeue", "")

    watched = Watched({500: ends})
    (state,) = watched.watch("101")
    assert state.status.state == "COMPLETED" and watched.seconds < 500 + 2 * 12 + 2, "waits grow to 120 s meanwhile"


def test_watching_survives_what_slurm_forgets(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterrun.scheduler.slurm.client.SILENT_FOR", 0.0)
    desk.slurm.answer("squeue", rows({"i": "7", "T": "COMPLETED"}, {"i": "8"}))
    forgets = lambda: desk.slurm.answer("squeue", rows({"i": "8"}))  # noqa: E731
    silent = lambda: desk.slurm.answer("squeue", **SILENT)  # noqa: E731
    ends = lambda: desk.slurm.answer("squeue", rows({"i": "8", "T": "CANCELLED"}))  # noqa: E731
    watched = Watched({5: forgets, 40: silent, 100: ends})
    assert [state.status.state for state in watched.watch("7", "8")] == ["COMPLETED", "CANCELLED"]
    assert "Unable to contact" in watched.out.getvalue()


def test_watching_a_lost_run_ends_as_status_does(desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = run(store)
    claim(one)
    monkeypatch.setattr("clusterrun.state.watch.BELIEVED_AFTER", 0.0)
    assert desk.type("status", "101").status == desk.type("status", "101", "--watch").status == 75
    assert desk.type("status", "999", "--watch").status == 4


def test_on_a_terminal_it_is_drawn_in_place_and_whole_at_the_end(desk: Desk, store: Store) -> None:
    one = run(store)
    desk.slurm.answer("squeue", rows(run_row(one)))
    watched = Watched({8: lambda: desk.slurm.answer("squeue", rows(run_row(one, T="COMPLETED")))}, Screen())
    watched.watch("101")
    drawn = watched.out.getvalue().split("\x1b[J")
    assert len(drawn) > 4 and "time  1:00 of" in drawn[1] and "time  1:02 of" in drawn[2]
    assert "COMPLETED" in drawn[-1] and str(one.run_dir) in drawn[-1]
