"""What `status` shows of a run's launches, its goodput and its slow ranks."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.job import JobStatus, Outcome
from clusterrun.records.end_records import unknown_status
from clusterrun.records.progress import RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder.launches import Launch
from clusterrun.state.launches import launch_line
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import list_row, state_lines, status_json
from clusterrun.top.shown import job_line, rank_rows
from clusterrun.top.source import Ranks
from tests.support.rank_files import put_progress
from tests.support.run_records import AT, attempt, submitted


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    """A run whose first launch was killed after 955 of 1,000 s, and whose second has run for 1,000 s."""
    run = submitted(Store(tmp_path, tmp_path / "state"))
    (run.run_dir / "attempts").mkdir(exist_ok=True)
    now = time.time()
    folder = attempt(run, 0, 0)
    (folder / "launch.json").write_text(json.dumps({
        "began": now - 2000, "ended": now - 1000, "status": 137,
        "cause": "rank 3 ended without reporting a status",
        "first_step": 1, "first_step_at": now - 1950, "step": 90, "stepped": now - 1005, "step_s": 10.0,
    }))  # fmt: skip
    (folder / "nodes").write_text("gpu00\ngpu01")
    folder = attempt(run, 0, 1)
    (folder / "launch.json").write_text(json.dumps({"began": now - 1000}))
    for rank in range(4):
        times = {"step_s": 10.0, "data_s": 0.5, "compute_s": 9.0 if rank == 2 else 4.0}
        beat = {"rank": rank, "node": f"gpu0{rank // 2}", "time": now, "phase": "training", "step": 175, "steps": 500,
                "stepped": now, "first_step": 81, "first_step_at": now - 955, **times}  # fmt: skip
        put_progress(folder, rank, beat)
    (run.run_dir / "metrics.jsonl").write_text(json.dumps({"step": 175, "trained_s": 1800.0}) + "\n")
    return run


def state(run: RunRecord, **more: Any) -> RunState:
    job: JobStatus = replace(unknown_status(run, ""), state="RUNNING", outcome=Outcome.RUNNING, **more)
    return RunState(run, job)


def line(run: RunRecord, name: str) -> str:
    return next((text.split(maxsplit=1)[1] for text in state_lines(state(run)) if text.split()[0] == name), "")


def test_status_counts_launches_and_shows_goodput_and_the_slow_rank(run: RunRecord) -> None:
    assert line(run, "launch") == "2; the previous launch failed: rank 3 ended without reporting a status"
    assert re.fullmatch(r"90 % \(30:00 of 33:2\d allocated; 1 restart cost 2:30\)", line(run, "goodput"))
    assert line(run, "slow") == "rank 2 on gpu01: 0.47x the median speed (data 500 ms, compute 9000 ms per step)"


def test_json_has_the_figures(run: RunRecord) -> None:
    found = status_json(state(run))
    assert [one["lost_s"] for one in found["launches"]] == pytest.approx([5.0, 145.0])
    assert found["launches"][0] | {"began": 0, "ended": 0} == {
        "job_id": "101", "attempt": "0.0", "nodes": ["gpu00", "gpu01"], "status": 137,
        "cause": "rank 3 ended without reporting a status",
        "began": 0, "ended": 0, "first_step": 1, "last_step": 90, "lost_s": pytest.approx(5.0),
    }  # fmt: skip
    assert found["launches"][1]["ended"] is None
    assert found["goodput"] == {
        "share": pytest.approx(0.9, abs=0.01), "useful_s": 1800.0, "allocated_s": pytest.approx(2000, abs=5),
        "restarts": 1, "lost_s": pytest.approx(150.0),
    }  # fmt: skip
    assert found["ranks"][2]["compute_s"] == 9.0 and found["ranks"][2]["wait_s"] == 0.5
    assert [(one["rank"], one["node"]) for one in found["slow_ranks"]] == [(2, "gpu01")]
    assert found["failed_launches"] == ["rank 3 ended without reporting a status"]


def test_a_resumed_run_was_submitted_when_its_shown_job_was_everywhere(run: RunRecord) -> None:
    first = run.submission
    again = replace(first, token="abcdefgh22345672", job_id="102", at=AT + 90_000)
    resumed = replace(run, submissions=(first, again))
    for job, at in ((resumed, AT + 90_000), (resumed.as_submission(first), first.at)):
        shown = state(job, submitted=at + 300)  # Slurm counts from the last requeue
        moment = time.strftime("%m-%d %H:%M", time.localtime(at))
        assert moment in line(job, "submitted") and moment in list_row(shown) and status_json(shown)["submitted"] == at
    assert {launch["job_id"] for launch in status_json(state(resumed))["launches"]} == {"101"}


def test_a_run_without_these_records_has_no_such_lines(run: RunRecord) -> None:
    for path in run.run_dir.glob("attempts/*/*"):
        path.unlink()
    assert [line(run, name) for name in ("goodput", "slow")] == ["", ""]
    assert status_json(state(run))["goodput"] is None


KEYS = ("began", "ended", "status", "cause", "first_step", "first_step_at", "step", "stepped", "step_s", "log_start")
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.integers())


@given(
    one=st.dictionaries(st.sampled_from(KEYS), VALUES), two=st.dictionaries(st.sampled_from(KEYS), VALUES),
    trained=VALUES,
)  # fmt: skip
def test_whatever_the_records_hold_status_shows_lines_and_json(
    tmp_path_factory: pytest.TempPathFactory, one: dict[str, Any], two: dict[str, Any], trained: object
) -> None:
    root = tmp_path_factory.mktemp("run")
    run = submitted(Store(root, root / "state"))
    (run.run_dir / "attempts").mkdir(exist_ok=True)
    for launch, values in enumerate((one, two)):
        (attempt(run, 0, launch) / "launch.json").write_text(json.dumps(values))
    (run.run_dir / "metrics.jsonl").write_text(json.dumps({"step": 1, "trained_s": trained}) + "\n")
    assert state_lines(state(run)) and json.dumps(status_json(state(run)), allow_nan=False)


def test_top_marks_the_slow_rank() -> None:
    ranks = tuple(
        RankProgress(rank, f"gpu{rank}", 0.0, phase="training", data_s=0.0, compute_s=1.0 + rank // 3)
        for rank in range(4)
    )
    phases = [cells[2] for _, cells in rank_rows(Ranks(ranks), 0.0, False)]
    assert phases == ["training"] * 3 + ["training (slow: 0.50)"]
    assert [cells[2] for _, cells in rank_rows(Ranks(ranks), 0.0, True)] == ["training"] * 4
    assert "slow: rank 3 on gpu3 (0.50x the median speed)" in job_line(Ranks(ranks), 0.0, False)
    assert job_line(Ranks(ranks), 0.0, True) == ""


def test_a_launch_that_ended_as_it_should_has_not_failed() -> None:
    stopped, last = Launch(Path("t.0.0"), 85, "the time limit"), Launch(Path("t.1.0"))
    assert launch_line([stopped, last]) == "2; the previous launch ended: the time limit"
    assert launch_line([stopped._replace(cause=""), last]) == "2"
    assert "launch ended: the ranks" in launch_line([stopped._replace(status=143, cause="the ranks were ended"), last])
    assert launch_line([last]) == launch_line([]) == ""
