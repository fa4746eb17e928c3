"""The state of a job that has ended, from the end records of its attempts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.job import Outcome
from clusterrun.records import run_record
from clusterrun.records.store import Store
from clusterrun.scheduler import Answer
from clusterrun.state import reconcile
from tests.support.run_records import AT, attempt, claim, end, submitted
from tests.support.scripted_scheduler import SILENT, Scripted, ask, row


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, tmp_path / "state")


@pytest.mark.parametrize(
    ("record", "state", "outcome"),
    [
        (end(0), "COMPLETED", Outcome.DONE),
        (end(3), "FAILED", Outcome.FAILED),
        (end(85), "FAILED", Outcome.STOPPED),
        (end(143, signal="TERM"), "CANCELLED", Outcome.CANCELLED),
        (end(143, signal="TERM", due="TIME LIMIT"), "TIMEOUT", Outcome.FAILED),
        (end(143, signal="TERM", reason="TimeLimit"), "TIMEOUT", Outcome.FAILED),
        ({"status": "x"}, "FAILED", Outcome.FAILED),
        ({}, "FAILED", Outcome.FAILED),
    ],
)
@pytest.mark.parametrize("answer", [Answer(), SILENT], ids=["answering", "silent"])
def test_the_end_record_tells(
    store: Store, answer: Answer, record: dict[str, Any], state: str, outcome: Outcome
) -> None:
    run = submitted(store)
    claim(run)
    ranks = [{"rank": rank, "task": rank, "node": node} for rank, node in enumerate(("n1", "n2", "n1"))]
    attempt(run, end=record, start={"time": AT + 100, "ranks": [*ranks, 7]})
    scheduler = Scripted(answer)
    found = ask(store, run, scheduler)
    assert (found.status.state, found.status.outcome, found.status.source) == (state, outcome, "record")
    if record.get("time"):
        assert (found.status.elapsed, found.status.nodes, found.status.ended) == (500, "n1,n2", AT + 600)
        assert found.status.exit_status == record["status"]
    named = ["account 101"] if answer.complete and state == "CANCELLED" else []
    assert scheduler.queries == ["query", *named], "the run's own records show its end, but not who cancelled it"


@pytest.mark.parametrize(("record", "state"), [(end(0), "COMPLETED"), (end(0, signal="TERM"), "PREEMPTED")])
def test_a_job_that_completed_is_not_preempted_because_an_earlier_start_was(
    store: Store, record: dict[str, Any], state: str
) -> None:
    run = submitted(store)
    claim(run)
    attempt(run, end=record)
    queued = row(run, "PREEMPTED", ended=AT + 600)  # Slurm 24.11, where preemption cancels jobs
    assert ask(store, run, Scripted(Answer([queued]))).status.state == state


@pytest.mark.parametrize("due", ["JOB REQUEUE", "PREEMPTION", "NODE FAILURE"])
def test_an_attempt_that_slurm_will_start_again_is_no_end(store: Store, due: str) -> None:
    run = submitted(store)
    claim(run)
    attempt(run, end=end(143, signal="TERM", due=due))
    assert ask(store, run, Scripted()).status.outcome is Outcome.UNKNOWN


def test_ranks_that_end_with_0_after_sigterm_are_not_done(store: Store) -> None:
    for due, state in (("TIME LIMIT", "TIMEOUT"), ("", "CANCELLED")):
        run = submitted(store)
        claim(run)
        attempt(run, end=end(0, signal="TERM", due=due))
        ended = reconcile.end_of(run)
        assert ended is not None and ended.state == state


def test_the_newest_attempt_counts(store: Store) -> None:
    run = submitted(store)
    attempt(run, 0, end=end(1))
    attempt(run, 1, end=end(0, restart=1))
    claim(run, restart=1)
    state = ask(store, run, Scripted())
    assert state.status.state == "COMPLETED" and state.status.restarts == 1
    claim(run, restart=2)  # a third has begun and has no folder yet
    assert reconcile.end_of(run) is None


def test_an_attempt_began_with_its_claim_not_when_its_ranks_had_met(store: Store) -> None:
    run = submitted(store)
    claim(run)
    os.utime(run.run_dir / "claims" / run.submission.token / "owner", (AT + 60, AT + 60))
    attempt(run, end=end(), start={"time": AT + 100})
    ended = reconcile.end_of(run)
    assert ended is not None and (ended.started, ended.elapsed) == (AT + 60, 540)


def test_a_requeue_takes_an_end_back(store: Store) -> None:
    run = submitted(store)
    claim(run)
    attempt(run, end=end(1))
    ended = ask(store, run, Scripted()).record
    assert ended is not None and ended.submission.final is not None
    again = ask(store, ended, Scripted(Answer([row(run, "PENDING")])))
    assert again.status.state == "PENDING"
    found = run_record.load(run.run_dir)
    assert found is not None and found.submission.final is None


def test_a_final_state_that_was_seen_stays_when_slurm_has_forgotten_the_job(store: Store) -> None:
    run = submitted(store)
    claim(run)
    attempt(run, end=end(143, signal="TERM"))  # a signal to its supervisor: to Slurm that is a failure
    shown = {"time_limit": 3600, "partition": "gpu", "exit_status": 143}
    seen = ask(store, run, Scripted(Answer([row(run, "FAILED", **shown)])))
    assert seen.status.state == "FAILED" and seen.record is not None
    later = ask(store, seen.record, Scripted())
    assert (later.status.state, later.status.source) == ("FAILED", "record")
    assert (later.status.time_limit, later.status.partition) == (3600, "gpu")


@pytest.mark.parametrize(("restart", "record", "state"), [
    (1, end(143, signal="TERM", restart=1), "CANCELLED"),  # Slurm has started it once more
    (0, end(0), "COMPLETED"),  # the ranks' end records came late
])  # fmt: skip
def test_a_later_end_replaces_the_one_that_was_seen(
    store: Store, restart: int, record: dict[str, Any], state: str
) -> None:
    run = submitted(store)
    claim(run)
    attempt(run, end=end(3))
    seen = ask(store, run, Scripted(Answer([row(run, "FAILED")]))).record
    assert seen is not None
    claim(run, restart=restart)
    attempt(run, restart, end=record)
    assert ask(store, seen, Scripted()).status.state == state


def test_an_end_record_that_comes_late_does_not_hide_who_cancelled_the_job(store: Store) -> None:
    run = submitted(store)
    claim(run)
    final = {"state": "CANCELLED", "source": "sacct", "ended": AT + 600, "restarts": None, "cancelled_by": 1234}
    seen = store.save_submission(run, replace(run.submission, final=final))
    attempt(run, end=end(143, signal="TERM"))
    scheduler = Scripted()
    assert ask(store, seen, scheduler).status.cancelled_by == 1234
    assert "account 101" not in scheduler.queries


def test_an_ended_run_that_slurm_has_forgotten_shows_the_limit_and_partition_it_requested(store: Store) -> None:
    run = submitted(store, sources={"time": ("1:00:00", "--time"), "partition": ("long", "--partition")})
    claim(run)
    attempt(run, end=end())
    status = ask(store, run, Scripted()).status
    assert (status.state, status.time_limit, status.partition) == ("COMPLETED", 3600, "long")
