"""What a run used, by its own records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.job import JobId, JobStatus, Outcome
from clusterrun.cli.common.show import efficiency_of
from clusterrun.records import run_record
from clusterrun.records.end_records import unknown_status
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.report.usage import earlier_usages, usage_of
from clusterrun.state.reconcile import RunState
from tests.support.rank_files import put_progress
from tests.support.run_records import AT, attempt, submitted

SOURCES = {"gpus-per-node": (4, "--gpus-per-node"), "mem": ("80G", "--mem"), "time": ("12:00:00", "--time")}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, tmp_path / "state")


def make(store: Store, number: int = 1, *, seconds: int = 11_400, **more: Any) -> RunRecord:
    """A run of two nodes that completed, whose ranks left their peaks."""
    run = submitted(store, number, name="train", sources=SOURCES, nodes=2, workers_per_node=2, **more)
    folder = attempt(run)
    (folder / "launch.json").write_text(json.dumps({"began": AT, "ended": AT + seconds, "status": 0}))
    for rank in range(4):
        gpu = {"use": 0.0, "mean_use": 50.0 + 20 * (rank == 3), "samples": 100 * (1 + (rank == 3)), "peak_gib": 60.0}
        put_progress(
            folder, rank, {"node": f"n{rank // 2}", "time": AT + 9.0, "memory_peak_gib": 2.0 + rank, "gpu": gpu}
        )
    final = {"state": "COMPLETED", "exit_status": 0, "elapsed": seconds, "time_limit": 43_200, "ended": AT + seconds}
    return store.save_submission(run, replace(run.submission, final=final))


def done(run: RunRecord, **more: Any) -> JobStatus:
    facts = {"state": "COMPLETED", "outcome": Outcome.DONE, "elapsed": 11_400, "time_limit": 43_200, **more}
    return replace(unknown_status(run, ""), **facts)


def test_the_records_of_the_ranks_say_what_was_used(store: Store) -> None:
    run = make(store)
    usage = usage_of(run, done(run))
    assert usage.gpu_hours == pytest.approx(8 * 11_400 / 3600)
    assert usage.gpu_busy == pytest.approx((3 * 50 + 2 * 70) / 500), "a rank with twice the samples counts twice"
    assert (usage.memory_gib, usage.gpu_memory_gib, usage.asked_memory_gib) == (9.0, 60.0, 80.0)
    assert (usage.seconds, usage.asked_s, usage.is_whole) == (11_400, 43_200, True)


def test_each_job_of_a_resumed_run_counts_its_own_gpu_hours(store: Store) -> None:
    run = make(store, seconds=3600)
    newer = replace(run.submission, token="zzzzzzzzabcdefgh", at=AT + 9000, job_id="109", final=None)
    resumed = replace(run, submissions=(*run.submissions, newer))
    (attempt(resumed) / "launch.json").write_text(json.dumps({"began": AT + 9000, "ended": AT + 9900, "status": 0}))
    hours = [usage_of(one, done(one, elapsed=0)).gpu_hours for one in (resumed.as_job(JobId("101")), resumed)]
    assert hours == [pytest.approx(8), pytest.approx(2)]


def test_the_memory_of_the_whole_job_on_a_node_counts_if_it_is_known(store: Store) -> None:
    run = make(store)
    folder = run_record.attempts(run)[0]
    put_progress(folder, 0, {"node": "n0", "time": AT + 9.0, "memory_peak_gib": 50.0, "node_memory_peak_gib": 20.0})
    assert usage_of(run, done(run)).memory_gib == 20.0


def test_a_run_without_gpus_figures_or_memory_claims_none(store: Store) -> None:
    run = submitted(store, sources={"gpus-per-node": (0, "--gpus-per-node"), "mem": ("0", "--mem")})
    attempt(run)
    usage = usage_of(run, done(run))
    assert usage[:5] == (None, None, None, None, None)


@pytest.mark.parametrize(
    ("text", "gib"), [("64G", 64), ("2000", 2000 / 1024), ("1t", 1024), ("512MB", 0.5), ("x", None)]
)
def test_memory_is_read_as_slurm_reads_it(store: Store, text: str, gib: float | None) -> None:
    run = replace(make(store), sources={"mem": (text, "--mem")})
    assert usage_of(run, done(run)).asked_memory_gib == gib


def test_the_last_runs_of_the_same_name_in_this_project_are_earlier_ones(store: Store) -> None:
    runs = [make(store, number, seconds=100 * number) for number in range(1, 9)]
    submitted(store, 9, name="train")  # it has not ended
    submitted(store, 10, name="other")
    assert [usage.seconds for usage in earlier_usages(store, runs[-1])] == [700, 600, 500, 400]


def test_an_active_job_has_no_card_and_a_completed_one_has_the_options_for_next_time(store: Store) -> None:
    run = make(store)
    cluster: Any = type("Cluster", (), {"store": lambda self, root: store})()
    assert efficiency_of(cluster, RunState(run, done(run, state="RUNNING", outcome=Outcome.RUNNING))) is None
    found = efficiency_of(cluster, RunState(run, done(run)))
    assert found is not None and found.lines()[-1] == "next time ask for --time 4:00:00 --mem 12G"
    assert json.dumps(found.json(), allow_nan=False)


def test_a_limit_that_the_partition_set_was_not_asked_for(store: Store) -> None:
    run = replace(make(store), sources={"nodes": (2, "--nodes")})
    assert usage_of(run, done(run)).asked_s is None


def test_a_run_of_several_starts_does_not_say_how_long_one_takes(store: Store) -> None:
    run = make(store)
    attempt(run, restart=1)
    assert not usage_of(run, done(run)).is_whole


def test_a_task_of_a_sweep_does_not_say_what_the_next_sweep_needs(store: Store) -> None:
    run = make(store)
    job = done(run)
    assert not usage_of(run, replace(job, id=job.id._replace(task=3))).is_whole
