"""What a killed submitter leaves, and how the next command finishes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.base.job import JobId
from clusterrun.run_folder import submissions
from clusterrun.system import processes
from tests.support.fake_scheduler import GONE, NOW, TOKEN, FakeSlurm, Time, ask, claim, left, staged


def test_killed_before_sbatch_it_says_so_and_later_that_it_was_never_submitted(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    staged(tmp_path, submitter=(processes.submitter()[0], 1, 7))  # the pid is another process's by now
    soon, later = ask(slurm, tmp_path), ask(slurm, tmp_path, NOW + 61)
    assert "unknown whether the run was submitted" in soon.status.reason
    assert later.status.reason.startswith("never submitted") and "--recover" in later.status.reason
    assert left(tmp_path)[0].submission.state == submissions.NOT_SUBMITTED


def test_a_submitter_on_another_host_is_given_longer(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    staged(tmp_path, submitter=("elsewhere", 1, 7))
    assert "unknown" in ask(slurm, tmp_path, NOW + 299).status.reason
    assert "never submitted" in ask(slurm, tmp_path, NOW + 301).status.reason


def test_nothing_is_concluded_from_silence(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time(), deaf=[(0, 1e9)])
    staged(tmp_path, submitter=GONE)
    assert "unknown" in ask(slurm, tmp_path, NOW + 10_000).status.reason
    assert left(tmp_path)[0].submission.state == submissions.SUBMITTING


def test_a_living_submitter_is_left_alone(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    staged(tmp_path)
    slurm.make(TOKEN)
    assert ask(slurm, tmp_path, NOW + 10_000).status.reason == "being submitted"
    assert left(tmp_path)[0].submission.state == submissions.SUBMITTING


@pytest.mark.parametrize("how", ["queue", "claim"])
@pytest.mark.parametrize("before", [submissions.SUBMITTING, submissions.NOT_SUBMITTED])
def test_a_job_that_turns_up_is_adopted_however_late(tmp_path: Path, how: str, before: str) -> None:
    slurm = FakeSlurm(Time())
    _, record, _ = staged(tmp_path, submitter=GONE, state=before)
    slurm.make("another-token22", state="RUNNING")
    if how == "queue":
        slurm.make(TOKEN)
    else:
        claim(record, "101")
    state = ask(slurm, tmp_path, NOW + 10_000)
    assert state.status.id == JobId("101")
    (read,) = left(tmp_path)
    assert (read.submission.state, str(read.job_id)) == (submissions.ACCEPTED, "101")


def test_killed_while_staging_leaves_nothing_that_looks_like_a_run(tmp_path: Path) -> None:
    _, record, _ = staged(tmp_path)
    whole = sorted(path for path in record.run_dir.rglob("*") if path.is_file())
    names = [path.name for path in whole]
    assert names == ["record.json", "script.sh", "spec.json", f"{TOKEN}.json"]
    for missing in (f"{TOKEN}.json", "record.json", "script.sh", "spec.json"):  # the order of writing, backwards
        next(path for path in whole if path.name == missing).unlink()
        assert left(tmp_path) == []


def test_a_torn_temporary_file_is_not_read(tmp_path: Path) -> None:
    _, record, _ = staged(tmp_path)
    (record.run_dir / "submissions" / f".{TOKEN}.json.4711").write_text('{"version": 1, "tok')
    assert len(left(tmp_path)) == 1


def test_reading_goes_on_where_nothing_can_be_written(tmp_path: Path) -> None:
    slurm = FakeSlurm(Time())
    _, record, _ = staged(tmp_path, submitter=GONE)
    slurm.make(TOKEN)
    (record.run_dir / "submissions" / f".{TOKEN}.json.{processes.submitter()[1]}").mkdir()  # in the way of writing
    assert ask(slurm, tmp_path).record is not None
