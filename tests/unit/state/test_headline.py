"""What matters about a job, in one line."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.base.job import JobId, JobStatus, Outcome
from clusterrun.records.progress import Metrics, RankProgress
from clusterrun.state import headline

NOW = 10_000.0
HALF = Metrics(step=450, time=NOW, steps=1000, steps_per_second=0.1)


def job(state: str = "RUNNING", outcome: Outcome = Outcome.RUNNING, **more: Any) -> JobStatus:
    return JobStatus(id=JobId("5"), state=state, outcome=outcome, **more)


def rank(
    number: int, step: int | None = 450, *, age: float = 3.0, use: float | None = None, phase: str = "training"
) -> RankProgress:
    gpu = None if use is None else {"name": "A100", "use": use}
    return RankProgress(number, f"node{number // 4}", NOW - age, 10.0, phase, step=step, gpu_record=gpu)


@pytest.mark.parametrize(("ranks", "figures", "line"), [
    ([rank(n) for n in range(8)], HALF, "training, 45 %, 1h 32m left; all 8 ranks at step 450"),
    ([rank(0, 448), rank(1)], None, "training; all 2 ranks at steps 448 to 450"),
    ([rank(0, None, phase="script"), rank(1, None, phase="script")], HALF, "running, 45 %, 1h 32m left"),
    ([rank(0), rank(1, None, phase="loading"), rank(2)], None, "training; 2 of 3 ranks at step 450"),
    ([rank(0), rank(5, age=180.0)], HALF, "1 of 2 ranks silent for 3 min: rank 5 on node1"),
    ([rank(n, age=60.0 + n) for n in range(3)], HALF, "3 of 3 ranks silent for 62 s: rank 2 on node0 and 2 more"),
    ([rank(0, use=97.0), rank(1, use=0.0)], None, "training; all 2 ranks at step 450; 1 of 2 GPUs idle"),
    ([], None, "running"),
])  # fmt: skip
def test_of_a_running_job_what_is_wrong_comes_before_how_far_it_is(
    ranks: list[RankProgress], figures: Metrics | None, line: str
) -> None:
    assert headline.of_job(job(), figures, ranks, now=NOW) == line


@pytest.mark.parametrize(("status", "first", "line"), [
    (job("PENDING", reason="Resources"), "", "waiting: Resources"),
    (job("COMPLETING"), "", "completing"),
    (job("COMPLETED", Outcome.DONE, elapsed=11_400), "", "done after 3:10:00"),
    (job("FAILED", Outcome.FAILED, elapsed=60), "ValueError: no", "failed after 1:00: ValueError: no"),
    (job("TIMEOUT", Outcome.STOPPED, elapsed=3600), "", "stopped after 1:00:00"),
    (job("UNKNOWN", Outcome.LOST), "", "lost"),
])  # fmt: skip
def test_of_another_job_its_reason_or_its_end_is_shown(status: JobStatus, first: str, line: str) -> None:
    assert headline.of_job(status, now=NOW, first=first) == line
