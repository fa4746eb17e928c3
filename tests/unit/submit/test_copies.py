"""Two jobs of one run, and one id for two runs: which job is the run's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterrun.base.job import JobId, Outcome
from clusterrun.records import run_record
from clusterrun.records.ownership import JobIndex
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import submissions
from clusterrun.scheduler import Answer
from clusterrun.submit import protocol
from tests.support.fake_scheduler import GONE, NOW, TOKEN, FakeSlurm, Time, ask, claim, left, staged, status


def test_of_two_jobs_the_older_is_kept_and_the_waiting_one_cancelled(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    slurm.make(TOKEN), slurm.make(TOKEN), slurm.make(TOKEN, state="RUNNING")
    told: list[str] = []
    _, record, _ = staged(tmp_path)
    assert protocol.find_job(slurm, [record], slurm.time.clock, told.append) == JobId("100")
    assert slurm.cancelled == [JobId("101")] and "keeping job 100" in told[0]


def test_of_two_jobs_the_one_that_claimed_is_kept(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    slurm.make(TOKEN), slurm.make(TOKEN, state="RUNNING")
    _, record, _ = staged(tmp_path)
    claim(record, "101")
    assert protocol.find_job(slurm, [record], slurm.time.clock, str) == JobId("101")
    assert slurm.cancelled == [JobId("100")]


def test_a_copy_that_cannot_be_cancelled_is_no_error(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    slurm.make(TOKEN), slurm.make(TOKEN)
    slurm.cancel_fails = True
    _, record, _ = staged(tmp_path)
    assert protocol.find_job(slurm, [record], slurm.time.clock, str) == JobId("100")


def test_a_claim_alone_tells_the_job(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time(), deaf=[(0, 1e9)])
    _, record, _ = staged(tmp_path)
    claim(record, "7")
    assert protocol.find_job(slurm, [record], slurm.time.clock, str) == JobId("7")


@pytest.mark.parametrize("owner", ["", "fake none 0", "fake 7", "fake ../7 0", "fake 7 x", "fake 7 0 0"])
def test_a_claim_that_is_none_is_not_believed(tmp_path: Path, owner: str) -> None:
    _, record, _ = staged(tmp_path)
    claim(record, "7")
    (record.run_dir / "claims" / TOKEN / "owner").write_text(owner)
    assert run_record.claim_of(record) is None


@pytest.mark.parametrize(
    ("claimed", "recorded", "there", "expected"),
    [
        (None, "", ["5", "6"], "5"),
        (None, "6", ["5", "6", "7"], "6"),
        (None, "9", ["5", "6"], "5"),  # the recorded id was a banner's
        ("6", "5", ["5", "6"], "6"),
        ("6", "5", ["5"], None),  # 5 is a copy that left; 6 has left the queue
        ("6", "", [], None),
        (None, "", ["10", "9"], "9"),  # by number
    ],
)
def test_which_of_the_jobs_with_a_token_is_the_runs(
    tmp_path: Path, claimed: str | None, recorded: str, there: list[str], expected: str | None
) -> None:
    _, record, _ = staged(tmp_path, job_id=recorded)
    if claimed:
        claim(record, claimed)
    found = JobIndex([status(JobId(id), TOKEN) for id in there]).own(record)
    assert (found.id.raw if found else None) == expected


# -- ids that were given out twice -----------------------------------------------------------------------------------


def accepted(root: Path, token: str, job: str, **changes: object) -> RunRecord:
    return staged(root, token, state=submissions.ACCEPTED, job_id=job, submitter=GONE, **changes)[1]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETED", "FAILED"])
def test_the_state_of_who_got_the_id_is_never_shown(tmp_path: Path, state: str) -> None:
    slurm = FakeSlurm(Time())
    slurm.make("another-token22", state=state, nodes="node1")
    slurm.past = Answer([
        status(JobId("100"), TOKEN, "PENDING"),  # accounting still believes that the lost one waits
        status(JobId("100"), "another-token22", "COMPLETED", ended=NOW),
    ])  # fmt: skip
    accepted(tmp_path, TOKEN, "100")
    found = ask(slurm, tmp_path)
    assert (found.status.state, found.status.outcome, found.status.nodes) == ("UNKNOWN", Outcome.LOST, "")
    assert left(tmp_path)[0].submission.final is None


@pytest.mark.parametrize("tokens", [("aaaaaaaa22222222", "zzzzzzzz22222222"), ("zzzzzzzz22222222", "aaaaaaaa22222222")])
def test_of_two_runs_with_one_id_the_later_is_the_newest_even_within_a_second(
    tmp_path: Path, tokens: tuple[str, str]
) -> None:
    for token in tokens:
        store, record, _ = staged(tmp_path, token)
        store.commit(record, JobId("100"))
    assert [run.submission.token for run in store.by_job(JobId("100"))] == list(tokens)


def test_accounting_that_does_not_answer_is_no_proof_of_loss(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    slurm.past = Answer(complete=False, note="sacct: Connection refused")
    accepted(tmp_path, TOKEN, "100")
    found = ask(slurm, tmp_path)
    assert (found.status.outcome, found.note) == (Outcome.UNKNOWN, "sacct: Connection refused")


def test_a_copy_never_stands_for_the_run(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    slurm.make(TOKEN, state="RUNNING"), slurm.make(TOKEN, state="FAILED", exit_status=75)
    record = accepted(tmp_path, TOKEN, "100")
    claim(record, "100")
    for _ in range(2):
        assert (ask(slurm, tmp_path).status.id.raw, ask(slurm, tmp_path).status.state) == ("100", "RUNNING")


def test_a_run_is_the_job_that_claimed_it_whichever_was_written_down(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    slurm.make(TOKEN, state="FAILED", exit_status=75)
    record = accepted(tmp_path, TOKEN, "100")
    claim(record, "101")
    attempt = record.run_dir / "attempts" / f"{TOKEN}.0.0"
    attempt.mkdir()
    (attempt / "end.json").write_text(json.dumps({"status": 0, "job": "101", "restart": 0, "time": NOW}))
    found = ask(slurm, tmp_path)
    assert (found.status.id.raw, found.status.state) == ("101", "COMPLETED")
    assert str(left(tmp_path)[0].job_id) == "101"
