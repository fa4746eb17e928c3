"""An earlier job of a resumed run shows what it did itself, not what the job that continues it has done since."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.job import JobId, JobStatus, Outcome
from clusterrun.compare.options import command_line, compare_options
from clusterrun.records import progress
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.report.collect import collect
from clusterrun.report.page import report_page
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import state_lines, status_json
from tests.support.rank_files import put_end, put_progress
from tests.support.run_readers import RecordsOnly
from tests.support.run_records import AT, attempt, submitted

NEXT = AT + 1000


@pytest.fixture
def resumed(tmp_path: Path) -> RunRecord:
    """A run whose job 101 printed the steps 10 to 160 and failed, and whose job 102 went on from 150 to 300."""
    run = submitted(Store(tmp_path, tmp_path / "state"), nodes=1, workers_per_node=2)
    again = replace(run.submission, token="bbcdefgh22345672", job_id="102", at=NEXT)
    run = replace(run, submissions=(run.submission, again))
    _put_launch(run.as_job(JobId("101")), AT + 10.0, 1, range(10, 161, 10))
    _put_launch(run, NEXT + 10.0, 0, range(160, 301, 10))
    return run


def _put_launch(run: RunRecord, began: float, status: int, steps: range) -> None:
    printed = {"step": steps[-1], "stepped": began + 90, "steps": 300, "loss": 1.0, "first_step": steps[0],
               "first_step_at": began + 15, "losses": [[step, 1 / step] for step in steps]}  # fmt: skip
    launch = {"began": began, "ended": began + 100, "status": status, "cause": "rank 1: KeyError" * status}
    folder = attempt(run, progress=printed)
    (folder / "launch.json").write_text(json.dumps(launch))
    for rank in range(2):
        put_progress(folder, rank, {"rank": rank, "node": "n1", "time": began + 90, "phase": "ending"})
        put_end(folder, rank, {"rank": rank, "node": "n1", "status": status, "time": began + 100})


def test_the_command_of_the_job_that_resumed_has_the_arguments_given_at_resume(resumed: RunRecord) -> None:
    (resumed.run_dir / "spec.json").write_text(
        json.dumps({"work": {"path": "/u/train.py", "args": ["--ckpt", "b.pt"]}})
    )
    last = replace(resumed.submission, resume_args="--resume b.pt")
    run = replace(resumed, submissions=(*resumed.submissions[:-1], last))
    assert command_line(run) == "/u/train.py --ckpt b.pt --resume b.pt"
    assert command_line(run.as_job(JobId("101"))) == "/u/train.py --ckpt b.pt"
    (changed,) = (change for change in compare_options(run.as_job(JobId("101")), run) if change.name == "arguments")
    assert (changed.first, changed.second) == ("--ckpt b.pt", "--ckpt b.pt --resume b.pt")


def state_of(run: RunRecord, job: str) -> RunState:
    status = 1 if job == "101" else 0
    word, outcome = ("FAILED", Outcome.FAILED) if status else ("COMPLETED", Outcome.DONE)
    return RunState(run.as_job(JobId(job)), JobStatus(id=JobId(job), state=word, outcome=outcome, exit_status=status))


def line(state: RunState, name: str) -> str:
    return next((text for text in state_lines(state) if text.split()[0] == name), "")


def report_of(state: RunState) -> dict[str, Any]:
    return collect(RecordsOnly(), state, NEXT + 500.0)


def test_status_of_the_earlier_job_has_its_own_launch_and_losses(resumed: RunRecord) -> None:
    earlier, newest = state_of(resumed, "101"), state_of(resumed, "102")
    assert line(earlier, "launch") == "" and line(earlier, "loss").endswith(" 0.00625")
    assert line(newest, "launch").endswith("2; the previous launch failed: rank 1: KeyError")
    assert line(newest, "loss").endswith(" 0.003333")


def test_json_of_the_earlier_job_has_its_own_launches(resumed: RunRecord) -> None:
    jobs = [[one["job_id"] for one in status_json(state_of(resumed, job))["launches"]] for job in ("101", "102")]
    assert jobs == [["101"], ["101", "102"]]


def test_the_report_of_the_earlier_job_has_its_own_ranks_and_curve(resumed: RunRecord) -> None:
    earlier = report_of(state_of(resumed, "101"))
    assert [(rank["status"], len(rank["spans"]) > 0) for rank in earlier["timeline"]["ranks"]] == [(1, True)] * 2
    assert earlier["timeline"]["ended"] < NEXT and earlier["curves"]["loss"][-1][0] == 160
    assert report_of(state_of(resumed, "102"))["curves"]["loss"][-1][0] == 300


def test_on_the_page_of_a_resumed_run_what_is_one_jobs_names_that_job(resumed: RunRecord) -> None:
    newest, earlier = (
        report_page(
            [report_of(state_of(resumed, job)) | {"elapsed": 34, "card": ["0.04 GPU-hours"]}], None, NEXT + 500.0
        )
        for job in ("102", "101")
    )
    assert "Time of job 102" in newest and "What job 102 used" in newest
    assert "restart before step 160" in newest and "Lost: " in newest
    assert ">Time<" in earlier and "What it used" in earlier


def test_the_metrics_and_samples_of_the_later_job_are_not_those_of_the_earlier_one(resumed: RunRecord) -> None:
    rows = [{"step": step, "loss": 1.0, "time": at + step} for at, steps in ((AT, (1, 160)), (NEXT, (150, 300)))
            for step in steps]  # fmt: skip
    samples = [{"step": step, "prompt": "Once", "text": f"upon {step} times"} for step in (1, 160, 300)]
    for name, lines in (("metrics", rows), ("samples", samples)):
        (resumed.run_dir / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    earlier = resumed.as_job(JobId("101"))
    metrics, newest = progress.last_metrics(earlier), progress.last_metrics(resumed)
    assert metrics is not None and newest is not None and (metrics.step, newest.step) == (160, 300)
    report = report_of(state_of(resumed, "101"))
    assert report["curves"]["loss"][-1][0] == 160 and report["samples"][0]["after"]["text"] == "upon 160 times"
    assert report_of(state_of(resumed, "102"))["samples"][0]["after"]["text"] == "upon 300 times"
