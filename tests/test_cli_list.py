"""`list`, `status` and `wait` over answers that a test sets: what is shown, and how often Slurm is asked."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pwd import getpwuid
from typing import Any

import pytest

from clusterrun import states
from clusterrun.cli.watching import Listed, Named, watch
from clusterrun.job import JobId, JobStatus, outcome_of
from clusterrun.listing import Wanted
from clusterrun.live.pace import Pace
from clusterrun.scheduler.slurm_text import _SACCT, _SQUEUE, SEP
from clusterrun.states import RunState
from clusterrun.store import RunRecord, Store
from clusterrun.ui import Ui
from tests.desks import Desk
from tests.recording import attempt, claim, end, submitted, with_submission
from tests.sites import until

SILENT = {"err": "slurm_load_jobs error: Unable to contact slurm controller\n", "status": 1}


def rows(*jobs: dict[str, Any]) -> str:
    defaults = {"T": "RUNNING", "r": "None", "u": "me", "P": "gpu", "N": "n1", "D": "1", "M": "1:00", "l": "1:00:00",
                "V": str(int(time.time()) - 60), "S": "1", "e": "1", "o": "(null)", "j": "job"}  # fmt: skip
    lines = [{**defaults, **job} for job in jobs]
    return "".join(SEP.join(line.get(c[1:], line["i"]) for c in _SQUEUE) + "\n" for line in lines)


def run_row(run: RunRecord, **more: Any) -> dict[str, Any]:
    return {"i": str(run.job_id), "j": f"{run.name}.{run.submission.token[:8]}", **more}


@pytest.fixture
def store(desk: Desk) -> Store:
    return Store(desk.project, desk.state)


def run(store: Store, number: int = 1) -> RunRecord:
    return submitted(store, number, cluster="desk", user=getpwuid(os.getuid()).pw_name)


def trained(one: RunRecord) -> None:
    claim(one)
    folder = attempt(one)
    now = time.time()
    for rank in range(8):
        told = {
            "rank": rank,
            "node": "n1",
            "time": now - rank,
            "phase": "training",
            "step": 120 - (rank == 3),
            "steps": 1000,
        }
        (folder / f"rank-{rank}.progress").write_text(json.dumps(told))
    row = {"step": 120, "time": now - 4, "loss": 2.34567, "tokens_per_second": 45_100.4}
    (one.run_dir / "metrics.jsonl").write_text(json.dumps(row) + "\n")


def test_runs_and_other_jobs_in_one_table_by_one_squeue(desk: Desk, store: Store) -> None:
    one = run(store)
    trained(one)
    now = str(int(time.time()))
    desk.slurm.answer("squeue", rows(run_row(one), {"i": "7", "j": "theirs", "V": now}, {"i": "8", "T": "COMPLETED"}))
    said = desk.type("list")
    assert said.status == 0, said
    ours, other = (line.split("\t") for line in said.out.splitlines())
    assert ours[:3] == ["101", "train1", "RUNNING"] and ours[7:10] == ["120", "2.346", "45,100"]
    assert other[:3] == ["7", "theirs", "RUNNING"] and other[7] == ""
    data = desk.type("list", "--json").data
    assert [row["run_id"] for row in data] == [one.run_id, None]
    assert data[0]["metrics"]["step"] == 120 and data[1]["metrics"] is None
    assert [call[0] for call in desk.slurm.calls if call[0] != "scontrol"] == ["squeue", "squeue"]


def test_arrays_are_collapsed_or_by_task(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows({"i": "5_[2-99%4]", "T": "PENDING"}, {"i": "5_0"}, {"i": "5_1"}))
    assert [line.split("\t")[0] for line in desk.type("list").out.splitlines()] == ["5_[0-1]", "5_[2-99%4]"]
    assert [line.split("\t")[0] for line in desk.type("list", "--expand").out.splitlines()] == [
        f"5_{task}" for task in range(100)
    ]
    data = desk.type("list", "--json").data
    assert [(row["job_id"], row["tasks"], row["task_count"]) for row in data] == [("5", "0-1", 2), ("5", "2-99%4", 98)]


def test_a_finished_run_is_asked_of_no_accounting_again(desk: Desk, store: Store) -> None:
    one = run(store)
    name = f"{one.name}.{one.submission.token[:8]}"
    cells = {"JobID": "101", "State": "FAILED", "ExitCode": "3:0", "End": str(int(time.time())), "JobName": name}
    desk.slurm.answer("sacct", SEP.join(cells.get(column, "1") for column in _SACCT) + "\n")
    (row,) = desk.type("list", "--all", "--json").data
    assert (row["state"], row["exit_status"]) == ("FAILED", 3) and desk.slurm.count("sacct") == 1
    for words in (["list"], ["list", "--all"], ["list", "--state", "F"], ["status", "101"], ["wait", "101"]):
        desk.type(*words)
    assert desk.slurm.count("sacct") == 1 and desk.slurm.count("squeue") == 6
    assert desk.type("list").out == "" and desk.type("list", "--state", "F").out.startswith("101\ttrain1\tFAILED")


def test_a_finished_run_that_was_started_again_is_listed(desk: Desk, store: Store) -> None:
    one = run(store)
    claim(one)
    attempt(one, end=end(1))
    assert desk.type("list").out == ""
    assert desk.type("list").out == ""
    desk.slurm.answer("squeue", rows(run_row(one, o=f"{one.run_dir}/script.sh")))
    (row,) = desk.type("list", "--json").data
    assert (row["run_id"], row["state"]) == (one.run_id, "RUNNING")


def test_a_job_that_waits_has_not_started(desk: Desk) -> None:
    later = {"i": "7", "T": "PENDING", "S": str(int(time.time()) + 600)}
    desk.slurm.answer("squeue", rows({**later, "r": "Priority"}))
    said = desk.type("status", "7")
    assert "  started" not in said.out and re.search(r"^    start  Slurm expects 20.*, in \d+ min$", said.out, re.M)
    assert desk.type("status", "7", "--json").data[0]["started"] is None
    desk.slurm.answer("squeue", rows({**later, "r": "JobHeldUser"}))
    assert "expects" not in desk.type("status", "7").out, "it starts when somebody releases it, and not then"


def test_a_silent_controller_changes_no_state(desk: Desk, store: Store) -> None:
    one, never_seen = run(store, 1), run(store, 2)
    desk.slurm.answer("squeue", rows(run_row(one), {"i": "7", "T": "PENDING", "r": "Priority"}))
    desk.type("list")
    desk.slurm.answer("squeue", **SILENT)
    said = desk.type("list", "--json")
    assert said.status == 0 and said.err.count("Unable to contact") == 1
    told = {row["job_id"]: row for row in said.data}
    assert {job: row["state"] for job, row in told.items()} == {"101": "RUNNING", "102": "UNKNOWN", "7": "PENDING"}
    assert time.time() - told["101"]["as_of"] < 60 and told["102"]["as_of"] is None
    said = desk.type("status", "101", "7")
    assert said.status == 75 and said.out.count("s ago: squeue: slurm_load_jobs error: Unable to contact") == 2
    assert "as of" in desk.type("list").out
    refused = desk.type("cancel", "101")
    assert refused.status == 3 and desk.slurm.count("scancel") == 0, "what may have changed is not cancelled"
    assert never_seen.submission.final is None


def test_what_was_last_known_is_kept_for_its_owner_alone(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows({"i": "7"}))
    desk.type("list")
    (kept,) = (desk.state / "clusters").glob("*.squeue")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_status_in_full(desk: Desk, store: Store) -> None:
    one = run(store)
    trained(one)
    desk.slurm.answer("squeue", rows(run_row(one, N="n[1-2]")))
    said = desk.type("status", "101")
    assert said.status == 0 and "step 120, loss 2.346, 45,100 tokens/s, 4 s ago" in said.out
    assert "8 ranks training, step 120/1000, all heard in the last 7 s" in said.out
    assert "next  clusterrun logs 101 -f" in said.out and "submitted  " in said.out
    (data,) = desk.type("status", "101", "--json").data
    assert len(data["ranks"]) == 8 and data["first_failure"] is None and data["metrics"]["loss"] == 2.34567


def test_status_says_a_reason_in_words(desk: Desk, store: Store) -> None:
    one = run(store)
    desk.slurm.answer("squeue", rows(run_row(one, T="PENDING", r="Dependency", N="")))
    said = desk.type("status", "101")
    (line,) = [line for line in said.out.splitlines() if line.startswith("   reason")]
    assert line.startswith("   reason  Dependency: ") and "clusterrun why 101" in said.out
    (data,) = desk.type("status", "101", "--json").data
    assert data["reason"] == "Dependency" and data["reason_meaning"]
    desk.slurm.answer("squeue", rows(run_row(one, T="PENDING", r="Bogus\x1b[31m", N="")))
    assert "   reason  Bogus\\x1b[31m\n" in desk.type("status", "101").out


def test_odd_bytes_in_the_queue_harm_nobody(desk: Desk) -> None:
    path = desk.slurm.folder / "squeue.out"
    good = rows({"i": "7", "j": "x\x1b]0;t\x07|é"}).encode()
    path.write_bytes(b"\xff\xfe\x00 noise\n" + good.replace("é".encode(), b"\xff") + b"8" + b"\x1f" * 30 + b"\n\x1b[2J")
    (desk.slurm.folder / "squeue").write_text(f'#!/bin/sh\ncat "{path}"\n')
    said = desk.type("list")
    assert said.status == 0 and "\x1b" not in said.out and r"x\x1b]0;t\x07|\xff" in said.out


@pytest.mark.parametrize(
    "words", [["list", "--watch", "--json"], ["list", "--since", "x"], ["list", "--state", "a b"],
              ["status", "7", "--watch", "--json"]],
)  # fmt: skip
def test_what_is_refused(desk: Desk, words: list[str]) -> None:
    said = desk.type(*words)
    assert said.status == 2 and desk.slurm.calls == []


def test_wait_for_a_job_of_another_tool(desk: Desk) -> None:
    desk.slurm.answer("squeue", rows({"i": "7", "T": "COMPLETED"}))
    assert desk.type("wait", "7").status == 0
    desk.slurm.answer("squeue", rows({"i": "7_1", "T": "COMPLETED"}, {"i": "7_2", "T": "FAILED"}))
    said = desk.type("wait", "7", "--json")
    assert said.status == 1 and [row["state"] for row in said.data] == ["COMPLETED", "FAILED"]


class Stop(Exception):
    pass


def job(id: str, state: str = "RUNNING", **more: Any) -> RunState:
    return RunState(None, JobStatus(id=JobId(id), state=state, outcome=outcome_of(state), name="x", **more))


def watched(answers: list[list[RunState]], seconds: float) -> tuple[list[float], Ui]:
    """When a watch asked, over that many seconds of a clock that only sleeping moves; each answer once, the last on."""
    clock, asked = [0.0], list[float]()

    class Answers(Listed):
        def ask(self) -> list[RunState]:
            asked.append(clock[0])
            return answers[min(len(asked), len(answers)) - 1]

    def sleep(pause: float) -> None:
        clock[0] += pause
        if clock[0] > seconds:
            raise Stop

    with pytest.raises(Stop):
        watch(Ui("list"), Answers(Wanted(), expand=False), pace=Pace(seed=1), sleep=sleep, now=lambda: clock[0])
    return asked, Ui("list")


def test_watching_asks_rarely(capsys: pytest.CaptureFixture[str]) -> None:
    asked, _ = watched([[job("1")]], 3600)
    gaps = [later - first for first, later in pairwise(asked)]
    assert min(gaps) >= 10 and max(gaps) <= 120 * 1.2 + 2 and len(asked) < 45


def test_watching_into_a_pipe_prints_a_block_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    watched([[job("1", "PENDING")], [job("1", elapsed=1)], [job("1", elapsed=90)], []], 600)
    blocks = capsys.readouterr().out.split("\n\n")
    assert len(blocks) == 3 and "PENDING" in blocks[0] and "RUNNING" in blocks[1] and "no jobs" in blocks[2]
    assert "JOBID" in blocks[0]


@pytest.mark.parametrize(("words", "begins"), [(["list"], "7 "), (["status", "7"], "      job  7  job")])
def test_ctrl_c_ends_watching(desk: Desk, words: list[str], begins: str) -> None:
    desk.slurm.answer("squeue", rows({"i": "7"}))
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterrun", *words, "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    until(lambda: process.stdout.readline().startswith(begins), 20)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err.strip()) == (130, "")
    # of a job by its id it is asked whether it is one of ours, then how it stands
    assert desk.slurm.count("squeue") == len(words) and desk.slurm.count("sacct") == 0


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
        ui, shown = Ui("status", out=self.out), Named(names, lambda line: None, explain=False)
        return watch(ui, shown, pace=Pace(seed=1), sleep=self.sleep, now=lambda: self.seconds)


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
    assert without_ages[0] == without_ages[1] and "7  job" in plain.out.splitlines()[0]


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
    monkeypatch.setattr("clusterrun.scheduler.slurm.SILENT_FOR", 0.0)
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
    monkeypatch.setattr("clusterrun.watch.BELIEVED_AFTER", 0.0)
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


def test_figures_of_a_run_that_is_over_are_kept_with_its_end(desk: Desk, store: Store) -> None:
    one = run(store)
    trained(one)
    attempt(one, end=end(0))
    desk.type("list", "--all")
    (one.run_dir / "metrics.jsonl").unlink()
    (data,) = desk.type("list", "--all", "--json").data
    assert data["metrics"]["step"] == 120 and data["outcome"] == "done"
    assert states.figures(with_submission(one, final={"figures": {"step": "x"}})) is None
