"""The failures of nodes that only a command can see: the end of a job whose supervisor left no word."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.job import JobStatus, outcome_of
from clusterrun.records.store import Store
from clusterrun.run_folder.node_failures import LAUNCH, LOST, NodeFailure, load, note
from clusterrun.scheduler import Answer
from clusterrun.state import failed_nodes
from tests.support.run_records import attempt, claim, end, submitted
from tests.support.scripted_scheduler import Scripted, ask, row

NOW = int(time.time())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, tmp_path / "state")


def remembered(store: Store) -> dict[str, list[str]]:
    found = load(store.state, "lab", time.time())
    return {node: [one.kind for one in failures] for node, failures in found.items()}


def ended(store: Store, run: Any, state: str, **changes: Any) -> None:
    job = JobStatus(id=run.job_id, state=state, outcome=outcome_of(state), ended=NOW - 60, **changes)
    for _ in range(2):  # each look at the job
        failed_nodes.note_end(store.state, run, job)


def test_the_first_node_of_a_job_that_ended_without_its_supervisors_word_was_lost(store: Store) -> None:
    run = submitted(store)
    folder = attempt(run)
    (folder / "nodes").write_text("n4\nn5")
    ended(store, run, "NODE_FAIL", nodes="n[4-5]")
    assert remembered(store) == {"n4": [LOST]}


def test_what_the_supervisor_has_recorded_counts(store: Store) -> None:
    run = submitted(store)
    (attempt(run, end=end(143, due="NODE FAILURE")) / "nodes").write_text("n4\nn5")
    ended(store, run, "NODE_FAIL", nodes="n[4-5]")
    assert remembered(store) == {}


@pytest.mark.parametrize(("state", "changes", "expected"), [
    ("NODE_FAIL", {"nodes": "n4"}, {"n4": [LOST]}),
    ("NODE_FAIL", {"nodes": "n[4-5]"}, {}),  # either
    ("FAILED", {"nodes": "n[4-5]", "reason": "JobLaunchFailure"}, {"n4": [LAUNCH]}),
    ("FAILED", {"nodes": "n4", "reason": "NonZeroExitCode"}, {}),
    ("CANCELLED", {"nodes": "n4"}, {}),
    ("NODE_FAIL", {"nodes": ""}, {}),
])  # fmt: skip
def test_a_job_that_never_started(store: Store, state: str, changes: dict[str, str], expected: dict[str, Any]) -> None:
    run = submitted(store)
    run.logs.mkdir(exist_ok=True)
    ended(store, run, state, **changes)
    assert remembered(store) == expected


def test_a_job_without_its_log_folder_accuses_no_node(store: Store) -> None:
    run = submitted(store)
    ended(store, replace(run, root=run.root / "gone"), "FAILED", nodes="n4", reason="JobLaunchFailure")
    assert remembered(store) == {}


def test_a_query_notes_the_end_that_it_sees(store: Store) -> None:
    run = submitted(store)
    claim(run)
    (attempt(run) / "nodes").write_text("n4")
    job = replace(row(run, "NODE_FAIL"), ended=NOW - 5)
    ask(store, run, Scripted(Answer([job])))
    assert remembered(store) == {"n4": [LOST]}


def test_the_failures_of_a_jobs_nodes_are_those_of_all_runs(store: Store) -> None:
    run = submitted(store)
    note(store.state, "lab", [NodeFailure(node, NOW - 9, LOST, "", "7", "x.0.0") for node in ("n1", "n2")], NOW)
    job = JobStatus(id=run.job_id, state="RUNNING", outcome=outcome_of("RUNNING"), nodes="n[2-3]")  # type: ignore[arg-type]
    assert [*failed_nodes.of_job(store.state, run, job)] == ["n2"]
    assert failed_nodes.of_job(store.state, None, job) == {}
