"""The fake scheduler for users' tests: it takes part in the submission protocol like a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun import Cluster
from clusterrun.base.errors import NoScheduler, Refused
from clusterrun.base.job import JobId, Outcome
from clusterrun.run_folder import submissions
from clusterrun.scheduler import Scheduler
from clusterrun.state import reconcile
from clusterrun.submit import protocol
from clusterrun.testing import FakeScheduler
from tests.support.fake_scheduler import left, staged


def test_a_run_is_submitted_to_it_and_has_the_states_that_the_test_sets(tmp_path: Path) -> None:
    store, record, submission = staged(tmp_path)
    fake = FakeScheduler()
    scheduler: Scheduler = fake
    run = protocol.submit(store, scheduler, record, submission, notify=str)
    assert run.job_id == JobId("100") and fake.submissions == [submission]
    fake.set_state(JobId("100"), "RUNNING", nodes="node1")
    (state,) = reconcile.reconcile(store, scheduler, left(tmp_path), now=record.at + 30)
    assert (state.status.state, state.status.nodes) == ("RUNNING", "node1")
    fake.set_state(JobId("100"), "FAILED", exit_status=85)
    assert fake.jobs[JobId("100")].outcome is Outcome.STOPPED
    assert [job.id for job in fake.account([JobId("100")], 0).jobs] == [JobId("100")]


def test_a_planned_error_is_raised_once(tmp_path: Path) -> None:
    store, record, submission = staged(tmp_path)
    fake = FakeScheduler()
    fake.next_error = Refused("no such partition")
    with pytest.raises(Refused, match="no such partition"):
        protocol.submit(store, fake, record, submission, notify=str)
    assert not left(tmp_path) and not fake.jobs
    assert fake.submit(submission) == JobId("100")


def test_jobs_are_cancelled_held_and_found_by_their_token(tmp_path: Path) -> None:
    _, record, submission = staged(tmp_path)
    fake = FakeScheduler()
    first, other = fake.submit(submission), fake.add_job("another")
    assert [job.id for job in fake.find(submission.token, 0, submission.script).jobs] == [first]
    fake.hold(first)
    assert fake.jobs[first].reason == "JobHeldUser"
    fake.hold(first, release=True)
    fake.set_state(other, "RUNNING")
    with pytest.raises(Refused):
        fake.hold(other)
    assert [done.done for done in fake.cancel([first, JobId("7")])] == [True, False]
    assert fake.jobs[first].outcome is Outcome.CANCELLED and fake.cancelled == [first, JobId("7")]
    fake.answers = False
    assert not fake.query().complete
    assert record.submission.state == submissions.SUBMITTING


def test_a_cluster_takes_it_in_place_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    fake = FakeScheduler()
    monkeypatch.setenv("CLUSTERRUN_STATE", str(tmp_path / "state"))
    cluster = Cluster(cwd=tmp_path, scheduler=fake)
    run = cluster.submit_script("train.py", "--lr", "1", nodes=2, gpus_per_node=4)
    assert run.job_id == JobId("100") and run.cluster == "fake" and fake.submissions[0].nodes == 2
    fake.set_state(run.job_id, "RUNNING", nodes="node[1-2]")
    assert [(state.status.id, state.status.nodes) for state in cluster.listing().states] == [(run.job_id, "node[1-2]")]
    fake.set_state(run.job_id, "FAILED", exit_status=1)
    assert [state.status.outcome for state in cluster.wait([run])] == [Outcome.FAILED]
    assert cluster.status(["100"])[0].status.exit_status == 1
    with pytest.raises(NoScheduler):
        cluster.free()
