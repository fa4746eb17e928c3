"""The submit protocol against every answer and every order of them, without waiting."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterrun.base.errors import Ambiguous, NoScheduler, NotDelivered, Refused
from clusterrun.base.job import JobId
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import submissions
from clusterrun.state import reconcile
from clusterrun.system import processes
from tests.support.fake_scheduler import BUSY, NOW, left, send


def test_an_accepted_submission_is_on_disk_with_its_id(tmp_path: Path) -> None:
    slurm, run = send(tmp_path, ["accept"])
    assert isinstance(run, RunRecord) and str(run.job_id) == "100" and (slurm.sent, slurm.asked) == (1, 0)
    (read,) = left(tmp_path)
    assert (read.submission.state, str(read.job_id)) == (submissions.ACCEPTED, "100")
    assert [r.run_id for r in Store(tmp_path, tmp_path / "state").by_job(JobId("100"))] == [run.run_id]


@pytest.mark.parametrize("word", ["made", "late", "yes"])
def test_a_job_behind_an_unclear_answer_is_found_and_not_sent_again(tmp_path: Path, word: str) -> None:
    slurm, run = send(tmp_path, [word])
    assert isinstance(run, RunRecord) and str(run.job_id) == "100" and slurm.sent == 1


@pytest.mark.parametrize("deaf", [20.0, 60.0, 119.0])
def test_a_silent_controller_is_waited_for(tmp_path: Path, deaf: float) -> None:
    slurm, run = send(tmp_path, ["made"], [(0, deaf)])
    assert isinstance(run, RunRecord) and slurm.sent == 1


def test_a_request_that_did_not_arrive_is_sent_again_after_ten_seconds_of_good_answers(tmp_path: Path) -> None:
    slurm, run = send(tmp_path, ["unmade", "accept"])
    assert isinstance(run, RunRecord) and slurm.sent == 2 and slurm.asked >= 3 and slurm.time.seconds >= 20


def test_silence_between_good_answers_does_not_count_as_absence(tmp_path: Path) -> None:
    # the first good answer comes before the job is there, silence follows, then the job is seen
    slurm, run = send(tmp_path, ["late"], [(10.5, 60)])
    assert isinstance(run, RunRecord) and slurm.sent == 1


def test_without_a_controller_the_sending_ends_and_nothing_is_left(tmp_path: Path) -> None:
    told: list[str] = []
    slurm, error = send(tmp_path, ["undelivered"] * 50, notify=told.append)
    assert isinstance(error, NotDelivered) and error.exit_code == 3 and "nothing was submitted" in error.message
    assert 60 < slurm.time.seconds < 120 and slurm.sent == len(told) + 1
    assert error.detail == "connect failure" and not left(tmp_path) and not slurm.jobs
    assert not list((tmp_path / ".clusterrun" / "runs").iterdir())


def test_a_controller_that_stays_silent_leaves_the_record_and_says_how_to_go_on(tmp_path: Path) -> None:
    slurm, error = send(tmp_path, ["made"], [(0, 1e9)])
    assert isinstance(error, Ambiguous) and error.exit_code == 75 and slurm.time.seconds < 180
    (run,) = left(tmp_path)
    assert error.hint == f"run `clusterrun submit --recover {run.run_id}` later"
    assert run.submission.state == submissions.SUBMITTING and run.job_id is None
    assert not processes.submitter_is_alive(run.submission.submitter), "nobody is at it, though this process lives on"


def test_a_refusal_leaves_nothing(tmp_path: Path) -> None:
    slurm, error = send(tmp_path, ["refuse"])
    assert isinstance(error, Refused) and error.detail == "sbatch: error: no" and slurm.sent == 1
    assert not left(tmp_path) and not list((tmp_path / ".clusterrun" / "runs").iterdir())


def test_an_unknown_failure_without_a_job_is_a_refusal_in_its_own_words(tmp_path: Path) -> None:
    slurm, error = send(tmp_path, ["strange"])
    assert isinstance(error, Refused) and error.detail == "what?" and slurm.sent == 1 and slurm.asked >= 3
    assert not left(tmp_path)


def test_a_yes_without_a_job_is_never_sent_again(tmp_path: Path) -> None:
    slurm, error = send(tmp_path, ["no job"])
    assert isinstance(error, Ambiguous) and slurm.sent == 1 and "--recover" in error.hint
    assert len(left(tmp_path)) == 1


def test_requests_that_are_always_cut_off_end_some_time(tmp_path: Path) -> None:
    slurm, error = send(tmp_path, ["unmade"] * 100)
    assert isinstance(error, NotDelivered) and slurm.time.seconds < 300 and not left(tmp_path) and not slurm.jobs


def test_a_full_controller_is_waited_for_in_its_own_words(tmp_path: Path) -> None:
    told: list[str] = []
    slurm, run = send(tmp_path, ["busy", "busy", "accept"], notify=told.append)
    assert isinstance(run, RunRecord) and slurm.sent == 3 and len(slurm.jobs) == 1
    assert told == [f"sbatch waits: {BUSY}; checking whether the job was created"] * 2


def test_a_controller_that_stays_full_gets_no_job_and_the_message_says_why(tmp_path: Path) -> None:
    slurm, error = send(tmp_path, ["busy"] * 100)
    assert isinstance(error, NotDelivered) and slurm.time.seconds < 300 and not left(tmp_path) and not slurm.jobs
    assert error.message == f"Slurm accepts no job now: {BUSY}; nothing was submitted" and "MaxJobCount" in error.hint


def test_no_sbatch_leaves_nothing(tmp_path: Path) -> None:
    _, error = send(tmp_path, ["gone"])
    assert isinstance(error, NoScheduler) and not left(tmp_path)


WORDS = ["accept", "refuse", "undelivered", "made", "unmade", "late", "busy", "strange", "yes", "no job"]
silences = st.lists(st.tuples(st.floats(0, 200), st.floats(0.1, 150)), max_size=3)


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(st.sampled_from(WORDS), max_size=12), silences)
def test_whatever_happens_none_is_lost_doubled_or_wrong(plan: list[str], silent: list[tuple[float, float]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        slurm, result = send(root, plan, [(first, first + length) for first, length in silent])
        made = list(slurm.jobs)
        runs = left(root)
        assert len(made) <= 1, "doubled"
        assert slurm.time.seconds < 600
        if isinstance(result, RunRecord):
            assert [result.job_id] == made and [run.job_id for run in runs] == made
        elif isinstance(result, Ambiguous):
            assert [run.job_id for run in runs] == [None]
            # whatever it was, it is settled once the controller answers
            slurm.time.seconds += 1000
            (healed,) = reconcile.reconcile(Store(root, root / "state"), slurm, runs, now=NOW + 1000)
            assert healed.record is not None
            expected = (submissions.ACCEPTED, made[0]) if made else (submissions.NOT_SUBMITTED, None)
            assert (healed.record.submission.state, healed.record.job_id) == expected
        else:
            assert not made and not runs, "a job without a record"
