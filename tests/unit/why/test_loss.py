"""A running job whose loss is NaN or diverges is named, from its log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterrun.base.job import JobStatus, Outcome, log_paths
from clusterrun.records.store import Store
from clusterrun.why import ended
from clusterrun.why.causes.model import Line
from clusterrun.why.causes.nan_series import find_divergence
from clusterrun.why.pending.running_job import describe_running
from tests.support.ended_runs import Slurm, over
from tests.support.run_records import attempt, submitted

NOISE = (0.0, 0.2, -0.1, 0.1, -0.2)
FALLS = [5.0 - 0.04 * n + NOISE[n % 5] for n in range(100)]  # to 1
RISES = [1.0 + 0.2 * n + NOISE[n % 5] for n in range(1, 40)]  # to 9


def lines(values: list[float]) -> tuple[Line, ...]:
    return tuple(Line("train_1.out", n, 0, f"step {n} loss {value:.3f}") for n, value in enumerate(values, 1))


def test_a_loss_that_rises_over_three_times_its_lowest_diverges() -> None:
    found = find_divergence(lines(FALLS + RISES))
    assert found is not None and found[0] == 138
    assert found[1].startswith("the loss is diverging: 8.") and " at step 139, after a minimum of 1." in found[1]


@pytest.mark.parametrize("values", [
    FALLS,
    [*FALLS, 99.0],  # a spike
    FALLS + RISES + FALLS,  # it has recovered
    FALLS + [9.0] * 10 + [8.0] * 5,  # it recovers
    FALLS + [value / 4 + 1 for value in RISES[:10]],  # it rises a little
    [2.0, 9.0, 50.0, 90.0],  # too few
    [0.0] * 40 + [1.0] * 5,
], ids=range(7))  # fmt: skip
def test_other_losses_do_not(values: list[float]) -> None:
    assert find_divergence(lines(values)) is None


@pytest.mark.parametrize(("values", "warning"), [
    (["2.0", "1.9", "nan", "nan", "nan"], "warning: the loss became NaN at step 3 and stayed NaN (train_101.out)"),
    (["2.0", "1.9", "1.8"], None),
])  # fmt: skip
def test_why_warns_of_a_running_job(tmp_path: Path, values: list[str], warning: str | None) -> None:
    run = submitted(Store(tmp_path, tmp_path / "state"))
    assert run.job_id is not None
    job = JobStatus(id=run.job_id, state="RUNNING", outcome=Outcome.RUNNING)
    assert "warning" not in "".join(describe_running(job, run, 0.0)), "there is no log yet"
    out, _ = log_paths(run.logs, run.job_id)
    out.parent.mkdir(exist_ok=True)
    out.write_text("".join(f"0: step {n} loss {value}\n" for n, value in enumerate(values, 1)))
    found = [line for line in describe_running(job, run, 0.0) if line.startswith("warning")]
    assert found == [warning] * (warning is not None)


def test_why_names_a_loss_that_oscillates_while_the_job_runs_and_after_it(tmp_path: Path) -> None:
    run = submitted(Store(tmp_path, tmp_path / "state"))
    assert run.job_id is not None
    oscillates = "the loss oscillates: it rose by 1.5 or more and fell again 3 times"
    (attempt(run) / "progress.json").write_text(json.dumps({"step": 9, "stepped": 1.0, "warning": oscillates}))
    job = JobStatus(id=run.job_id, state="RUNNING", outcome=Outcome.RUNNING)
    assert describe_running(job, run, 0.0)[-1] == f"warning: {oscillates}"
    assert oscillates in ended.explain(Slurm({}), over(run, "COMPLETED", 0)).notes


def test_an_earlier_launch_is_no_reason_to_warn(tmp_path: Path) -> None:
    run = submitted(Store(tmp_path, tmp_path / "state"))
    assert run.job_id is not None
    job = JobStatus(id=run.job_id, state="RUNNING", outcome=Outcome.RUNNING)
    out, _ = log_paths(run.logs, run.job_id)
    out.parent.mkdir(exist_ok=True)
    before = "".join(f"0: step {n} loss nan\n" for n in range(1, 6))
    out.write_text(before + "0: loading the checkpoint of step 1\n")
    attempt(run, launch=0)
    attempt(run, launch=1)
    assert "warning" in describe_running(job, run, 0.0)[-1], "nothing shows where the second launch begins"
    (attempt(run, launch=1) / "launch.json").write_text(json.dumps({"began": 2.0, "log_start": [len(before), 0]}))
    assert "warning" not in "".join(describe_running(job, run, 0.0))
